"""What a request's JSON part tells a gateway: its sequence, its timeout, its priority. Pure.

``http_forward`` reads it of plain bodies, ``compressed_requests`` of what it has decompressed. A part that does not
parse says nothing: the worker refuses such a request in its own words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from isochrone.wire.exchange import Buffer

#: Bytes at the start and at the end of a large JSON part that are searched for parameters.
GLANCE = 4096
#: A timeout beyond this is none: eleven days, the most that ``x-request-timeout-ms`` may say.
_MAX_TIMEOUT_NS = 10**15


class Parameters(NamedTuple):
    """Empty or 0: it does not say."""

    sequence: bytes = b""
    timeout_ns: int = 0
    priority: int = 0


NONE = Parameters()


class _Request(msgspec.Struct):
    """All that is read of a JSON part; tensors in it are skipped."""

    parameters: dict[str, Any] | None = None


_json = msgspec.json.Decoder(_Request)


def both_ends(text: Buffer, length: int) -> bytes:
    """Of a JSON part: stock clients write parameters last, behind a JSON tensor or a long id."""
    start = bytes(text[: min(length, GLANCE)])
    return start + bytes(text[max(length - GLANCE, GLANCE) : length]) if length > GLANCE else start


def may_speak(text: bytes) -> bool:
    """Whether JSON text may hold one of the parameters."""
    return b'"sequence_id"' in text or b'"timeout"' in text or b'"priority"' in text


def read(text: Buffer) -> Parameters:
    """Those of a JSON part."""
    try:
        parameters = _json.decode(text).parameters or {}
        sequence = parameters.get("sequence_id", 0)
        timeout = parameters.get("timeout", 0)
        priority = parameters.get("priority", 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return NONE
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        priority = 0
    if isinstance(timeout, bool) or not isinstance(timeout, int) or not 0 < timeout < _MAX_TIMEOUT_NS // 1000:
        timeout = 0
    return Parameters(str(sequence).encode() if sequence else b"", timeout * 1000, priority)


def read_opened(text: Buffer) -> Parameters:
    """Those of a JSON part that was compressed."""
    return read(text) if may_speak(both_ends(text, len(text))) else NONE
