"""A gateway's offer of the epoch that it serves, while the epoch record and its copy cannot be read. Pure.

The offer outlives the gateway's process: a gateway that restarts meanwhile cannot read the epoch either. The leader
deletes offers once the epoch can be read.
"""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.view import View
from isochrone.store.base import Compare, Entry, Put


def offer(
    keys: Keys, entries: Mapping[str, Entry], gateway: str, served: EpochRecord | None
) -> tuple[Compare, Put] | None:
    """The condition and the operation; None: no offer is needed, or it is written. ``served``: the epoch that the
    gateway serves."""
    view = View(keys, entries)
    if served is None or not view.is_epoch_lost:
        return None
    key, value = keys.served_epoch(gateway), encode(served)
    written = entries.get(key)
    if written is not None and written.value == value:
        return None
    # A late offer must not be written after the record was repaired.
    return view.unchanged(keys.epoch), Put(key, value)
