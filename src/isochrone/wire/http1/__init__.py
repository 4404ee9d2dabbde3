"""HTTP/1.1 (RFC 9112): both ends of a connection, message heads, chunked bodies.

``server`` and ``client`` are asyncio protocols. No module here knows HTTP/2, or retries a request.
"""
