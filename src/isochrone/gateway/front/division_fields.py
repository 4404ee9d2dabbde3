"""The header ``x-isochrone-division`` as it is added to a request: a line of HTTP/1.1, or a field of a header block.

The gateway sends a wish: the worker knows more of its link, and runs another division where the preferred one fails.
"""

from __future__ import annotations

from isochrone.gateway.traffic.divisions import Choice
from isochrone.protocol.headers.divisions import DIVISION_HEADER, DIVISION_KINDS, write_wish
from isochrone.wire.http2.hpack import encode_literal

_LINES = {kind: b"%s: %s\r\n" % (DIVISION_HEADER, write_wish(kind)) for kind in DIVISION_KINDS}
#: Literals that can follow any encoded block (RFC 7541 §6.2.2: without indexing).
_FIELDS = {kind: encode_literal(DIVISION_HEADER, write_wish(kind)) for kind in DIVISION_KINDS}


def division_line(choice: Choice) -> bytes:
    """For HTTP/1.1; b"": the gateway adds nothing."""
    return _LINES[choice.division] if choice.is_sent else b""


def division_field(choice: Choice) -> bytes:
    """For HTTP/2; b"": the gateway adds nothing."""
    return _FIELDS[choice.division] if choice.is_sent else b""
