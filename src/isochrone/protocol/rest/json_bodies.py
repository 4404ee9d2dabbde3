"""A request's body as JSON, the way Triton reads it: NaN and infinities are numbers, a key given twice can be refused.

msgspec reads every ordinary body; what it does not know of is left to Python's own reader, off the common path. What is
wrong is a ``MalformedRequest``: nothing read here may hold text that cannot be written back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from isochrone.errors import InvalidArgument, MalformedRequest, PayloadTooLarge
from isochrone.protocol.tensors.datatypes import shown
from isochrone.wire.exchange import Buffer

Kind = TypeVar("Kind")

#: JSON is decoded on the event loop, at some 10 ms per MiB (2-core Neoverse N1), while everybody waits: it is bounded.
MAX_JSON_BYTES = 16 * 1024 * 1024
#: Python's own reader takes twenty times as long.
_MAX_NAN_BYTES = 1024 * 1024


def read_json(body: Buffer, decode: Callable[[Any], Kind], kind: type[Kind]) -> Kind:
    """``decode`` is msgspec's decoder of ``kind``."""
    if len(body) > MAX_JSON_BYTES:
        raise PayloadTooLarge(
            f"the request's JSON has {len(body)} bytes, at most {MAX_JSON_BYTES} are taken; send tensors as binary data"
        )
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = bytes(body)
        if b"NaN" not in text and b"Infinity" not in text:
            raise _malformed(error) from None
        if len(text) > _MAX_NAN_BYTES:
            raise PayloadTooLarge(
                f"JSON that holds NaN or Infinity may have {_MAX_NAN_BYTES} bytes, given {len(text)}; "
                "send tensors as binary data"
            ) from None
    try:
        value = json.loads(text, parse_float=_finite)
        # Python's reader takes half a surrogate pair, which no answer can carry; writing finds it.
        msgspec.json.encode(value)
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(error) from None


def refuse_repeated_keys(body: Buffer) -> None:
    """Raises for a JSON object, at any depth, that gives a key twice; the body has been read as JSON before."""
    try:
        json.loads(bytes(body), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        # Two readers' limits differ: digits of an integer, depth.
        raise _malformed(error) from None


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), -float("inf")):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        _refuse_second(pairs)
    return found


def _refuse_second(pairs: list[tuple[str, Any]]) -> NoReturn:
    counts = Counter(name for name, _ in pairs)
    second = counts.most_common(1)[0][0]
    raise InvalidArgument(f"input or parameter {shown(second)} already exists in request: a key may be given once")


def _malformed(error: Exception) -> MalformedRequest:
    return MalformedRequest(f"failed to parse the request JSON: {error}")
