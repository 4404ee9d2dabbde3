"""What changes with the store: the fleet map, rollouts and events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isochrone.console.view.events_view import EventView, event_views
from isochrone.console.view.fleet_map import FleetMap, fleet_map
from isochrone.console.view.rollout_view import RolloutView, rollout_views
from isochrone.control.api.answers.status import fleet_status
from isochrone.control.api.messages import Status, StoreState
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View
from isochrone.errors import IsochroneError


@dataclass(frozen=True, slots=True)
class FleetView:
    fleet: str
    generation: int
    epoch: int
    leader: str
    #: "": this controller reads and writes the store.
    store_error: str
    map: FleetMap
    rollouts: tuple[RolloutView, ...]
    events: tuple[EventView, ...]
    #: Records of the store that cannot be read.
    faults: tuple[str, ...] = ()
    #: Why the access file is not used; "": it is, or there is none.
    access_fault: str = ""


@dataclass(frozen=True, slots=True)
class FleetState:
    """The view, and what the view of a second needs of the same records."""

    view: FleetView
    open_rollouts: Sequence[RolloutRecord]
    deadlines_ms: Mapping[str, float]
    #: By worker: the shortest deadline of its models; those without one are left out.
    worker_deadlines_ms: Mapping[str, float]


def fleet_state(view: View, store: StoreState) -> FleetState:
    status = fleet_status(view, store)
    deadlines, order = _settings(view.fleet, status)
    replicas = {pool: record.replicas for pool, record in view.placements.items()}
    rollouts = view.rollouts
    shown = FleetView(
        status.fleet,
        status.generation,
        status.epoch,
        status.leader,
        "" if store.connected else store.error or "this controller does not reach the store",
        fleet_map(status, deadlines, replicas, order),
        rollout_views(rollouts),
        event_views(view.events()),
        tuple(f"{each.key}: {each.reason}" for each in status.faults),
        status.access_fault.text if status.access_fault is not None else "",
    )
    return FleetState(shown, status.rollouts, deadlines, _worker_deadlines(status, deadlines))


def _settings(record: FleetRecord | None, status: Status) -> tuple[dict[str, float], tuple[str, ...]]:
    """Deadlines by model, and the pools in the order of the file. A record that cannot be read has neither."""
    if record is None:
        return {}, ()
    try:
        fleet = fleet_of(record.spec)
    except IsochroneError:
        return {}, ()
    return {each.name: fleet.of(each.name).slo.deadline_ms for each in status.models}, tuple(fleet.pools)


def _worker_deadlines(status: Status, deadlines_ms: Mapping[str, float]) -> dict[str, float]:
    by_pool: dict[str, float] = {}
    for model in status.models:
        if deadline := deadlines_ms.get(model.name, 0.0):
            for pool in model.pools:
                by_pool[pool] = min(by_pool.get(pool, deadline), deadline)
    return {worker.name: by_pool[worker.pool] for worker in status.workers if worker.pool in by_pool}
