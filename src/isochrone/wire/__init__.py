"""Bytes on sockets: HTTP/1.1 and HTTP/2, server and client sides, as callbacks on asyncio protocols.

``listening`` accepts connections and hands each to ``http1`` or ``http2``, which parse requests and call an
``exchange.Application``. ``connect`` opens client connections, whose answers go to a ``receiver.Receiver``. No module
here knows anything about inference.
"""
