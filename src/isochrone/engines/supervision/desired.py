"""The processes that the fleet record asks for. Reads only what the supervisor's mirror of the store holds.

A record that cannot be read, or one for another engine, changes nothing: the processes that ran before stay desired.
Neither does the loss of the size that the autoscaler gave a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.planning.keeping import kept_processes, needed_pools
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.reading.present_fleet import at_present, last_sizes
from isochrone.control.state.codec import decode
from isochrone.control.state.records import Assignment, FleetRecord
from isochrone.control.state.view import View
from isochrone.store.base import Entry


def desired_processes(
    record: FleetRecord, view: View | None = None, sizes: Mapping[str, int] | None = None
) -> dict[str, ProcessSpec]:
    """The processes of a fleet record; with a view, also those of dropped pools that still serve.

    ``sizes``: of autoscaled pools; by default those of the view, and without a view those of the file.
    """
    fleet = fleet_of(record.spec)
    present = at_present(fleet, record.engine, view, sizes) if view is not None else fleet
    found = processes_on(record.engine, present, Path(record.directory))
    if view is None or not record.kept:
        return found
    needed = needed_pools(record, fleet, view.epoch, view.reconciled, view.open_rollouts)
    return {**kept_processes(record, needed), **found}


def awaited_models(
    record: FleetRecord, desired: Mapping[str, ProcessSpec], assignments: Mapping[str, Assignment]
) -> list[str]:
    """The committed models that the fleet serves once it is up: not those whose pools are empty until a request
    comes."""
    started = {spec.pool for spec in desired.values()}
    pools = record.spec.get("pools") or {}
    empty = {pool for pool, spec in pools.items() if spec.get("autoscale") is not None and pool not in started}
    return [name for name, each in assignments.items() if not each.pools or not empty.issuperset(each.pools)]


class FleetRecordReader:
    """``engine``: the supervisor's. ``make`` makes the processes of a record; ``notify`` gets every line for people."""

    def __init__(
        self,
        engine: str,
        entries: Mapping[str, Entry],
        view: View,
        make: Callable[[FleetRecord, View, Mapping[str, int]], Mapping[str, ProcessSpec]],
        notify: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._entries = entries
        self._view = view
        self._keys = view.keys
        self._make = make
        self._notify = notify
        self._desired: Mapping[str, ProcessSpec] = {}
        #: Of the fleet record that ``read`` follows; 0: none.
        self.generation = 0
        #: Of the records that ``_desired`` was made of.
        self._revisions: tuple[int, ...] = ()
        #: Of autoscaled pools, as they could last be read.
        self._sizes: Mapping[str, int] = {}
        #: The other engine that the fleet record names; "": it names this one.
        self._other_engine = ""

    def read(self) -> Mapping[str, ProcessSpec]:
        """The desired processes by name, made again if a record has changed."""
        self._refresh()
        return self._desired

    def _refresh(self) -> None:
        entries, keys = self._entries, self._keys
        entry = entries.get(keys.fleet)
        revisions = tuple(entries[key].revision for key in (keys.fleet, keys.epoch, keys.reconciled) if key in entries)
        rollouts = [entries[key].revision for key in entries if key.startswith(keys.rollouts)]
        sizes = [entries[key].revision for key in entries if key.startswith(keys.pool_sizes)]
        # With their number: a size that vanishes matters, too. An epoch is unreadable also for what gateways report.
        unreadable = any(map(self._view.is_unreadable, (keys.epoch, keys.reconciled)))
        revisions += (max(rollouts, default=0), len(sizes), max(sizes, default=0), unreadable)
        if entry is None or revisions == self._revisions:
            return
        self._revisions = revisions
        try:
            record = decode(entry.value, FleetRecord)
            if self._is_of_other_engine(record):
                return
            # A size that vanished or cannot be read stops no process.
            self._sizes = last_sizes(record, self._view, self._sizes)
            desired = self._make(record, self._view, self._sizes)
            if unreadable:
                # It is unknown which pools are still needed: no process is stopped.
                desired = {**self._desired, **desired}
            self._desired, self.generation = desired, record.generation
        except Exception as error:
            # The running processes were right before.
            self._notify(f"this release cannot read the applied fleet; all processes keep running: {error}")

    def _is_of_other_engine(self, record: FleetRecord) -> bool:
        """Its processes are not this supervisor's to run."""
        own = self._engine
        before, self._other_engine = self._other_engine, record.engine if record.engine != own else ""
        if self._other_engine and self._other_engine != before:
            self._notify(
                f"the applied fleet is to run on the engine {record.engine}, and this supervisor has {own}: it ignores "
                f"changes, and all processes keep running; stop it, or run 'isochrone up --engine {own}' again"
            )
        return bool(self._other_engine)
