"""Records as the JSON that the store keeps."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from isochrone.errors import Unavailable
from isochrone.store.seals import refusal

Record = TypeVar("Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode(value: bytes, kind: type[Record]) -> Record:
    """Raise ``Unreadable`` if the value is not a valid record of this kind, or was refused by its seal."""
    if reason := refusal(value):
        raise Unreadable(reason)
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from None


class Unreadable(Unavailable):
    """A record of the store that cannot be decoded."""

    code = "unreadable_record"
