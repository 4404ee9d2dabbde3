"""HTTP/2 (RFC 9113) and header compression (RFC 7541): both ends of a connection, frames, flow control.

``sending`` and ``connection`` are the halves that both ends share; ``server`` and ``client`` build on them. No module
here knows HTTP/1.1, or retries a request.
"""
