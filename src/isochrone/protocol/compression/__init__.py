"""gzip, deflate and zstd: request bodies are decompressed before their route sees them, large responses are compressed.

Work of more than a millisecond runs on threads. No module here allocates more than the memory budget and the body limit
allow, or blocks the event loop.
"""
