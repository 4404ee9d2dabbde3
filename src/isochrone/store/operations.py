"""Checks of a caller's arguments that hold for every store."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.errors import InvalidArgument
from isochrone.store.base import Delete, Put

#: etcd's default for --max-txn-ops; the same for SQLite, so that a fleet can move from one store to the other.
MAX_OPERATIONS = 128


def check_operations(operations: Sequence[Put | Delete]) -> None:
    if len(operations) > MAX_OPERATIONS:
        raise InvalidArgument(f"a transaction of {len(operations)} operations: expected at most {MAX_OPERATIONS}")
    seen: set[str] = set()
    for operation in operations:
        if not operation.key:
            raise InvalidArgument("a transaction with an empty key: expected at least one character")
        if operation.key in seen:
            raise InvalidArgument(f"key {operation.key} is twice in one transaction: expected each key once")
        seen.add(operation.key)


def check_seconds(seconds: float) -> None:
    if not 0 < seconds <= 86_400:
        raise InvalidArgument(f"a lease of {seconds} seconds: expected more than 0 and at most 86400")
