"""JSON request bodies as Triton reads them: NaN and infinities are numbers, and repeated keys can be rejected.

msgspec reads every ordinary body; Python's own parser reads those with NaN or infinities. Errors are
``MalformedRequest``. No accepted body contains text that cannot be encoded again.
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

#: JSON is decoded on the event loop, at about 10 ms per MiB (2-core Neoverse N1), so its size is bounded.
MAX_JSON_BYTES = 16 * 1024 * 1024
#: Python's own parser takes twenty times as long.
_MAX_NAN_BYTES = 1024 * 1024


def read_json(body: Buffer, decode: Callable[[Any], Kind], kind: type[Kind]) -> Kind:
    """``decode`` is msgspec's decoder of ``kind``."""
    if len(body) > MAX_JSON_BYTES:
        raise PayloadTooLarge(
            f"the request's JSON has {len(body)} bytes, at most {MAX_JSON_BYTES} are allowed; send tensors as binary "
            "data"
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
        # Python's parser accepts a lone surrogate, which no answer can encode; encoding detects it.
        msgspec.json.encode(value)
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(error) from None


def reject_repeated_keys(body: Buffer) -> None:
    """Raise if a JSON object, at any depth, has a key twice; the body is known to be JSON."""
    try:
        json.loads(bytes(body), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        # The two parsers have different limits on digits and depth.
        raise _malformed(error) from None


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), -float("inf")):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        _reject_second(pairs)
    return found


def _reject_second(pairs: list[tuple[str, Any]]) -> NoReturn:
    counts = Counter(name for name, _ in pairs)
    second = counts.most_common(1)[0][0]
    raise InvalidArgument(f"input or parameter {shown(second)} already exists in request: a key may be given once")


def _malformed(error: Exception) -> MalformedRequest:
    return MalformedRequest(f"failed to parse the request JSON: {error}")
