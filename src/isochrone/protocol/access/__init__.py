"""Access rules: which callers may use an API, change a worker, or call from a browser's page.

The modules decide; routers and applications enforce. No module here answers a request or reads a body.
"""
