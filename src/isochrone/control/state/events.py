"""The events of a fleet: the operations that write and trim them.

An event is written in the transaction that makes the change, so that neither exists without the other. The caller
writes the operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EventRecord
from isochrone.store.base import Delete, Entry, Put

#: Events that are kept. The leader deletes older ones.
KEEP = 1000
#: Deletions in one transaction: etcd accepts 128 operations (its ``--max-txn-ops``).
_AT_ONCE = 100


def event(keys: Keys, record: EventRecord, unique: str) -> Put:
    """The operation that writes an event.

    Its key sorts by time. ``unique`` separates two events of the same microsecond: any short unique string.
    """
    return Put(keys.event(f"{int(record.at * 1e6):016d}-{unique}"), encode(record))


def trimmed(keys: Keys, entries: Mapping[str, Entry], keep: int = KEEP) -> list[Delete]:
    """The operations that delete some of the oldest events beyond those to keep."""
    stamps = sorted(key for key in entries if key.startswith(keys.events))
    return [Delete(key) for key in stamps[: max(0, len(stamps) - keep)][:_AT_ONCE]]
