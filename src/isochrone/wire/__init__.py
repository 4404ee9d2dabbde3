"""Bytes on sockets: HTTP/1.1 and HTTP/2, both sides, as callbacks on asyncio protocols. Knows nothing of inference."""
