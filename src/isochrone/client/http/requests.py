"""What both HTTP transports share: a request's head, the test of an idle connection, and what neither can do."""

from __future__ import annotations

import select
from collections.abc import Mapping

from isochrone.client.address import Address
from isochrone.errors import InvalidArgument, Unsupported
from isochrone.settings.wire_limits import WireLimits

#: Answers may be larger than requests: they are memory that the caller asked for.
LIMITS = WireLimits(max_body_bytes=1 << 31, max_buffered_bytes=1 << 32)
#: Statuses for a caller without the right: they do not say whether the server is ready.
REFUSED = (401, 403)


def request_head(method: str, path: str, address: Address, headers: Mapping[str, str], length: int) -> bytes:
    """A complete head of HTTP/1.1."""
    lines = [f"{method} {path} HTTP/1.1\r\nhost: {address.authority}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    lines.append(f"content-length: {length}\r\n\r\n" if length or method != "GET" else "\r\n")
    text = "".join(lines)
    # Two line ends for each header beside those of the first lines: more would be a header within a value.
    if text.count("\n") != len(headers) + (3 if not length and method == "GET" else 4):
        raise InvalidArgument("headers: expected names and values without line ends")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidArgument("headers: expected values in Latin-1") from None


def has_ended(descriptor: int) -> bool:
    """Whether the server closed an idle connection: what is readable between answers is its end."""
    if descriptor < 0:
        return True
    # Not select(), which takes only the first 1,024 descriptors of a process.
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def stream_unsupported(address: Address) -> Unsupported:
    return Unsupported(
        f"stream: expected a client over gRPC, since HTTP has no tensors in streams, given {address}; use"
        f" Client('grpc://{address.host}:PORT') (every port of an Isochrone server speaks gRPC)"
    )
