"""The id that a request carries in its message: read where it is logged, never for a decision."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from isochrone.protocol.grpc.routing_fields import request_id
from isochrone.wire.exchange import Buffer

#: Largest JSON part that is parsed; of a longer one, so much is searched.
_READ_WHOLE: Final = 65_536
_GLANCE: Final = 1024
_ID: Final = re.compile(rb'"id"\s*:\s*"((?:[^"\\]|\\.){0,256})"')
#: Of a gRPC message, so much is read: ids stand behind the model's name and version.
_MESSAGE_START: Final = 4096


class _Identified(msgspec.Struct):
    """The member that is read."""

    id: str = ""


_identified = msgspec.json.Decoder(_Identified)


def of_http(body: Buffer, json_length: int) -> str:
    """``json_length``: of the JSON part; -1: all of the body."""
    length = len(body) if json_length < 0 else min(json_length, len(body))
    if length <= _READ_WHOLE:
        try:
            return _identified.decode(bytes(body[:length])).id
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ""
    found = _ID.search(bytes(body[:_GLANCE]))
    return found[1].decode("utf-8", "replace") if found is not None else ""


def of_grpc(message: Buffer, start: int) -> str:
    """``start``: where the message begins."""
    return request_id(bytes(message[start : start + _MESSAGE_START])).decode("utf-8", "replace")
