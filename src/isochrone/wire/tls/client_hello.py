"""The protocols that a TLS client offers, read from its first message (RFC 8446, 4.1.2 and RFC 7301, 3.1). Pure.

Python's ssl module says which protocol was chosen, but not whether a client offered any: a server could not tell a
client without ALPN, which is welcome, from one that means another protocol.
"""

from __future__ import annotations

_CLIENT_HELLO = 1
_ALPN = 16
#: Type and length of the message, version, random bytes.
_FIXED = 4 + 2 + 32


def offered_protocols(hello: bytes) -> tuple[bytes, ...] | None:
    """The names in the order of the client's preference; None: it offers none. Raises ``ValueError``."""
    if not hello or hello[0] != _CLIENT_HELLO or int.from_bytes(hello[1:4], "big") != len(hello) - 4:
        raise ValueError("no whole ClientHello")
    position = _FIXED
    # The session, the cipher suites, the compression methods.
    for size in (1, 2, 1):
        position = _after(hello, position, size)
    if position == len(hello):
        return None
    if _after(hello, position, 2) != len(hello):
        raise ValueError("the extensions do not end with the message")
    position += 2
    while position < len(hello):
        kind = int.from_bytes(hello[position : position + 2], "big")
        end = _after(hello, position + 2, 2)
        if kind == _ALPN:
            return _names(hello[position + 4 : end])
        position = end
    return None


def _names(extension: bytes) -> tuple[bytes, ...]:
    if _after(extension, 0, 2) != len(extension):
        raise ValueError("the names do not end with the extension")
    names = []
    position = 2
    while position < len(extension):
        end = _after(extension, position, 1)
        names.append(extension[position + 1 : end])
        position = end
    if not names or b"" in names:
        raise ValueError("no name, or an empty one")
    return tuple(names)


def _after(data: bytes, position: int, size: int) -> int:
    """Where a vector ends whose length has ``size`` bytes."""
    start = position + size
    end = start + int.from_bytes(data[position:start], "big")
    if start > len(data) or end > len(data):
        raise ValueError("a part is longer than what holds it")
    return end
