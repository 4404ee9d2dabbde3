"""Who changed what, when: the events of a fleet, and how many are kept.

An event is written in the transaction that makes the change, so that neither is there without the other. Decides what
to write and what to delete; whoever calls it does the writing.
"""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EventRecord, encode
from isochrone.store.base import Delete, Entry, Put

#: Events that are kept. The leader deletes older ones.
KEEP = 1000
#: Deleted in one transaction: etcd takes 128 operations (its ``--max-txn-ops``).
_AT_ONCE = 100


def event(keys: Keys, record: EventRecord, unique: str) -> Put:
    """The operation that writes an event.

    Its key sorts by time. ``unique`` tells two events of one microsecond apart: any short word that nobody else uses.
    """
    return Put(keys.event(f"{int(record.at * 1e6):016d}-{unique}"), encode(record))


def trimmed(keys: Keys, entries: Mapping[str, Entry], keep: int = KEEP) -> list[Delete]:
    """The operations that delete the oldest events beyond those to keep, some at a time; none: nothing to do."""
    stamps = sorted(key for key in entries if key.startswith(keys.events))
    return [Delete(key) for key in stamps[: max(0, len(stamps) - keep)][:_AT_ONCE]]
