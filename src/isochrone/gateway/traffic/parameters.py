"""The request parameters that the gateway reads from JSON: sequence, timeout, priority. Pure.

JSON that does not parse has none: the worker rejects such a request. This runs on the event loop, so of JSON over
``READ_WHOLE`` bytes only the ends are read, and objects and arrays among the parameters are skipped.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec

from isochrone.errors import InvalidArgument
from isochrone.gateway.traffic.json_ends import CutOff, cut_at_end, objects_at_end, value_at_start
from isochrone.wire.exchange import Buffer

#: Bytes at the start and at the end of a JSON part that are searched for parameter names.
GLANCE = 4096
#: A JSON part up to this size is parsed completely, which takes 0.4 to 1.3 ms.
READ_WHOLE = 256 * 1024
#: Bytes at the start and at the end of a larger one that are searched for ``parameters``.
ENDS = 8 * 1024
#: A longer timeout is ignored: eleven days, the limit of ``x-request-timeout-ms``.
_MAX_TIMEOUT_NS = 10**15


class Parameters(NamedTuple):
    """The parameters of a request; empty or 0: not given."""

    sequence: bytes = b""
    timeout_ns: int = 0
    priority: int = 0
    #: ``sequence_start``: it is the first request of its sequence.
    starts_sequence: bool = False


NONE = Parameters()
_Scalar = int | str | float | bool | None


class ParameterFields(msgspec.Struct):
    """As they stand in JSON."""

    sequence_id: _Scalar = None
    timeout: _Scalar = None
    priority: _Scalar = None
    sequence_start: _Scalar = None

    def checked(self) -> Parameters:
        sequence, timeout, priority = self.sequence_id, self.timeout, self.priority
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            priority = 0
        if isinstance(timeout, bool) or not isinstance(timeout, int) or not 0 < timeout < _MAX_TIMEOUT_NS // 1000:
            timeout = 0
        named = str(sequence).encode() if sequence else b""
        return Parameters(named, timeout * 1000, priority, self.sequence_start is True)


class _Request(msgspec.Struct):
    """The members that are read; tensors are skipped."""

    parameters: ParameterFields | None = None


_request = msgspec.json.Decoder(_Request)


def both_ends(text: Buffer, length: int) -> bytes:
    """The bytes to search: stock clients write parameters last, after a JSON tensor or a long id."""
    start = bytes(text[: min(length, GLANCE)])
    return start + bytes(text[max(length - GLANCE, GLANCE) : length]) if length > GLANCE else start


def may_contain(text: bytes) -> bool:
    """Whether JSON text may contain one of the parameters."""
    return b'"sequence_id"' in text or b'"timeout"' in text or b'"priority"' in text


def read(text: Buffer) -> Parameters:
    """The parameters of a JSON part, which is parsed completely."""
    return _decoded(text) or NONE


def _decoded(text: Buffer) -> Parameters | None:
    """The parameters; None: the text does not parse."""
    try:
        parameters = _request.decode(text).parameters
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decoded_not_finite(bytes(text))
    return NONE if parameters is None else parameters.checked()


def _decoded_not_finite(text: bytes) -> Parameters | None:
    """The same of JSON with NaN or Infinity, which workers accept and msgspec does not."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            return None
        # A lone surrogate, which Python's parser accepts, has no UTF-8: the worker rejects it, too.
        finite = msgspec.json.encode({"parameters": found.get("parameters")})
        parameters = _request.decode(finite).parameters
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None
    return NONE if parameters is None else parameters.checked()


def read_bounded(text: Buffer, length: int) -> Parameters:
    """The parameters of a JSON part of any size, the first ``length`` bytes of ``text``, in bounded time.

    Raises if it is large and ``parameters`` with a sequence is not completely at one of its ends: without its sequence
    the request would go to any worker, and might run twice.
    """
    if length > READ_WHOLE:
        return _read_ends(bytes(text[:ENDS]), bytes(text[length - ENDS : length]))
    return read(bytes(text[:length])) if may_contain(both_ends(text, length)) else NONE


def _read_ends(first: bytes, last: bytes) -> Parameters:
    if may_contain(last):
        for candidate in objects_at_end(last):
            if (found := _decoded(candidate)) is not None:
                return found
        if any((found := _decoded(candidate)) and found.sequence for candidate in cut_at_end(last)):
            raise _cut_off()
    if may_contain(first):
        try:
            value = value_at_start(first)
        except CutOff:
            if b'"sequence_id"' in first:
                raise _cut_off() from None
            return NONE
        return NONE if value is None else _decoded(b'{"parameters":%b}' % value) or NONE
    return NONE


def _cut_off() -> InvalidArgument:
    return InvalidArgument(
        f"JSON of more than {READ_WHOLE} bytes has a 'sequence_id' in an object of more than {ENDS} bytes: shorten "
        "'parameters', or send the tensors as binary data"
    )
