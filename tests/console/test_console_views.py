"""What the console shows, from records and figures: the map, loads, latencies, rollouts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.synthetic_fleet import SyntheticFleet
from isochrone.console.view.fleet_map import FAULTY, GONE, STANDBY, fleet_map
from isochrone.console.view.fleet_view import FleetState, fleet_state
from isochrone.console.view.latencies import NETWORK, WORKER_AND_NETWORK, percentiles, waterfall
from isochrone.console.view.loads import BUSY, IDLE, LATE, OVERLOADED, QUEUEING, level_of
from isochrone.console.view.model_history import model_history
from isochrone.console.view.rollout_view import actions_of, rollout_view
from isochrone.console.view.second_view import ALL, second_view
from isochrone.control.api.messages import Status, StoreState, WorkerStatus
from isochrone.control.figures.frames import COMPUTE, GATEWAY, QUEUE, WORKER, ModelFigures, StageFigures
from isochrone.control.figures.history import History
from isochrone.control.requests.decisions import Conflict, RequestContext
from isochrone.control.requests.rollouts import abort, promote
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import ProcessRecord
from isochrone.control.state.rollout_records import (
    ABORTED,
    ABORTING,
    CANARY,
    COMPARING,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    CanaryRule,
    Change,
    Progress,
    RolloutRecord,
)
from isochrone.control.state.view import View
from isochrone.store.base import Entry
from isochrone.store.opening import open_store

STORE = StoreState("sqlite:x", True, "", 1)


def state_of(directory: Path, workers: int = 10) -> tuple[SyntheticFleet, FleetState]:
    fleet = SyntheticFleet(workers)

    async def read() -> FleetState:
        store = open_store(f"sqlite:{directory / 'fleet.db'}")
        try:
            await fleet.write(store)
            return fleet_state(View(fleet.keys, (await store.list(fleet.keys.prefix)).entries), STORE)
        finally:
            await store.close()

    return fleet, asyncio.run(read())


def test_tiers_pools_versions_and_epochs(tmp_path: Path) -> None:
    _, state = state_of(tmp_path)
    shown = state.view
    assert [(tier.name, [pool.name for pool in tier.pools]) for tier in shown.map.tiers] == [
        ("edge", ["edge"]),
        ("core", ["core", "gpu"]),
    ]
    edge = shown.map.tiers[0].pools[0].workers
    assert [each.name for each in edge] == ["edge-1", "edge-2", "edge-3", "edge-4", "edge-5"]
    assert "detector 4" in edge[0].versions
    assert "detector 5 (5%)" in edge[0].versions
    assert not any(gateway.is_behind for gateway in shown.map.gateways)
    detector = next(each for each in shown.map.models if each.name == "detector")
    assert (detector.version, detector.canary, detector.deadline_ms, detector.state) == ("4", "5", 40.0, "canary")
    assert state.worker_deadlines_ms["edge-1"] == 40.0
    assert [each.identity for each in shown.rollouts] == ["r7", "r6"]
    assert shown.events[0].what == "rollout started"
    assert shown.store_error == ""


def worker(name: str, **more: object) -> WorkerStatus:
    given = {"fault": "", "standby": False, "draining": False, **more}
    return WorkerStatus(name, "h:1", "", "cpu", "", "cpu", "isochrone", draining_since=0.0, **given)  # type: ignore[arg-type]


def test_tiles_of_workers_that_do_not_serve() -> None:
    workers = (worker("cpu-10"), worker("cpu-2", fault="ejected"), worker("cpu-3", standby=True))
    dead = ProcessRecord("cpu-4", "worker", "cpu", deaths=2, error="no memory")
    status = Status("f", 1, 1, "c1", STORE, (), workers, (), (), processes=(dead,))
    tiles = fleet_map(status, {}, {}).tiers[0].pools[0].workers
    assert [(each.name, each.state) for each in tiles] == [
        ("cpu-2", FAULTY),
        ("cpu-3", STANDBY),
        ("cpu-4", GONE),
        ("cpu-10", "serving"),
    ]
    assert tiles[2].fault == "no memory"


def test_levels_by_the_share_of_the_deadline() -> None:
    ms = 1_000_000
    assert level_of(0, 0, 0) == IDLE
    assert level_of(3, 0, 0) == BUSY
    assert level_of(5, 2, 3 * ms, 40 * ms) == QUEUEING
    assert level_of(5, 2, 5 * ms, 40 * ms) == LATE
    assert level_of(5, 2, 21 * ms, 40 * ms) == OVERLOADED
    # Without a deadline: of 100 ms.
    assert level_of(5, 2, 21 * ms) == LATE


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_longer_wait_is_never_a_lower_level(in_flight: int, queued: int, wait: int, more: int, deadline: int) -> None:
    assert level_of(in_flight, queued, wait, deadline) <= level_of(in_flight, queued, wait + more, deadline)


def test_the_waterfall_adds_up_to_what_the_gateways_measured() -> None:
    stages = {
        GATEWAY: StageFigures(2_000_000, 2),
        WORKER: StageFigures(20_000_000, 2),
        QUEUE: StageFigures(6_000_000, 3),
        COMPUTE: StageFigures(15_000_000, 3),
    }
    found = waterfall(ModelFigures("m", answered=2, sum_ns=22_000_000, stages=stages), 40.0)
    assert [(each.stage, each.ms) for each in found.segments] == [
        (GATEWAY, 1.0),
        (NETWORK, 3.0),
        (QUEUE, 2.0),
        (COMPUTE, 5.0),
    ]
    assert (found.mean_ms, found.budget_ms) == (11.0, 40.0)
    # Without the workers' reports, the rest has no parts. Reports above what was measured leave the network nothing.
    bare = waterfall(ModelFigures("m", stages={WORKER: stages[WORKER]}), 0.0)
    assert [each.stage for each in bare.segments] == [WORKER_AND_NETWORK]
    late = waterfall(ModelFigures("m", stages={**stages, COMPUTE: StageFigures(90_000_000, 3)}), 0.0)
    assert [each.ms for each in late.segments if each.stage == NETWORK] == [0.0]


def test_percentiles_and_shares() -> None:
    figures = ModelFigures("m", answered=90, deadline_exceeded=5, failed=5, durations={3: 90})
    found = percentiles(figures, 10)
    assert (found.rate, found.missed, found.failed) == (10.0, 0.05, 0.05)
    assert percentiles(ModelFigures("m"), 10).p99 == 0.0


def test_a_second_of_the_fleet_and_a_history(tmp_path: Path) -> None:
    fleet, state = state_of(tmp_path)
    history = History()
    empty = second_view(history, {}, {})
    assert (empty.at, empty.models) == (0, {})
    for at in range(1000, 1030):
        history.add(fleet.frame(at))
    now = second_view(history, state.deadlines_ms, state.worker_deadlines_ms, state.open_rollouts)
    assert now.at == 1029
    assert set(now.workers) == {each.name for tier in state.view.map.tiers for p in tier.pools for each in p.workers}
    assert now.models[ALL].shown.rate == pytest.approx(
        sum(each.shown.rate for name, each in now.models.items() if name), rel=0.01
    )
    assert [(each.model, each.before, each.after) for each in now.comparisons] == [("detector", "4", "5")]
    past = model_history(history.frames(300), "detector", 300)
    assert len(past.at) == len(past.p99) == len(past.heat.columns) == 30
    assert (past.step, past.at[-1]) == (1, 1029)
    everything = model_history(history.frames(300), "", 300)
    assert everything.rate[-1] > past.rate[-1]
    # What the stream adds to the history is what the history has.
    assert now.models[ALL].heat == everything.heat.columns[-1]
    assert now.models["detector"].heat == past.heat.columns[-1]
    # What is sent is JSON, and small: a hundred workers make tens of kilobytes.
    assert len(msgspec.json.encode(now)) < 20_000


STATES = (PENDING, PREPARING, COMPARING, CANARY, SWITCHING, DRAINING, DONE, ABORTING, ABORTED)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("asked", ["", "by ada"])
def test_offered_actions_are_those_that_the_api_accepts(state: str, asked: str) -> None:
    keys = Keys("plant")
    record = RolloutRecord("r1", {"m": Change("2", "1")}, state, canary=CanaryRule(), abort_asked=asked)
    view = View(keys, {keys.rollout("r1"): Entry(keys.rollout("r1"), encode(record), 1)})
    context = RequestContext("ada", 0.0, "x")
    accepted = []
    for kind, decide in (
        ("promote", lambda: promote(view, "r1", context)),
        ("abort", lambda: abort(view, "r1", "", context)),
    ):
        try:
            decision = decide()
        except Conflict:
            continue
        # An accepted request that writes nothing has been made already.
        if decision.operations:
            accepted.append(kind)
    assert list(actions_of(record)) == accepted


def test_steps_of_a_rollout() -> None:
    workers = {"a": Progress("ready"), "b": Progress("failed", "no memory")}
    record = RolloutRecord(
        "r1", {"m": Change("2", "1")}, PREPARING, since={PENDING: 1.0, PREPARING: 2.0}, workers=workers
    )
    shown = rollout_view(record)
    assert [(step.state, step.place) for step in shown.steps] == [
        (PENDING, "done"),
        (PREPARING, "now"),
        (SWITCHING, "next"),
        (DRAINING, "next"),
        (DONE, "next"),
    ]
    assert shown.workers == {"failed": 1, "ready": 1}
    assert [(each.name, each.detail) for each in shown.waiting] == [("b", "no memory")]
    gone = rollout_view(msgspec.structs.replace(record, state=ABORTED, reason="it failed"))
    assert [step.state for step in gone.steps] == [PENDING, PREPARING, ABORTING, ABORTED]
    assert all(step.place == "done" for step in gone.steps)
    assert (gone.note, gone.actions) == ("it failed", ())
