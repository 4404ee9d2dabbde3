"""Applying a file, scaling, draining, aborting, promoting, forgetting: what is written, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fleet_records import ALL, CONTEXT, FLEET, KEYS, Records, file_of, read_rollout, renamed, served
from isochrone.control.fleet.derived.processes import ProcessSpec, processes
from isochrone.control.fleet.planning.keeping import kept_processes, needed_pools
from isochrone.control.fleet.planning.steps import RESTART
from isochrone.control.requests.decisions import Conflict
from isochrone.control.requests.fleet import NotAgreed, apply_fleet, scale
from isochrone.control.requests.processes import drain, forget_gateway, undrain
from isochrone.control.requests.rollouts import abort, promote
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import EpochRecord, EventRecord, ReconciledRecord
from isochrone.control.state.rollout_records import ABORTED, ABORTING, CANARY, DONE, DRAINING, PREPARING, Change
from isochrone.errors import InvalidArgument, IsochroneError, NotFound

CHANGES = {"detector": Change("2", "1")}


# The file.


def test_what_a_file_takes_away_has_to_be_agreed_to() -> None:
    records = Records(versions=ALL)
    smaller = file_of(FLEET.replace(", with: [reranker]", "").replace("  reranker: {version: 1, pools: [cpu]}\n", ""))
    with pytest.raises(NotAgreed) as caught:
        apply_fleet(records.view, smaller, CONTEXT)
    assert "takes away model reranker" in str(caught.value)
    assert "retire model reranker: no longer served" in str(caught.value), "the plan"
    with pytest.raises(NotAgreed):
        apply_fleet(records.view, smaller, CONTEXT, agreed=("model tracker", "pool cpu"))
    for agreed in (True, ("model reranker",)):
        assert apply_fleet(records.view, smaller, CONTEXT, agreed=agreed).operations


def test_a_repository_that_holds_less_retires_what_is_served() -> None:
    records = Records(text="name: plant", versions=served(here="1", gone="1"))
    file = replace(file_of("name: plant\nrepository: other"), versions={"here": "1"})
    with pytest.raises(NotAgreed, match="takes away model gone"):
        apply_fleet(records.view, file, CONTEXT)


def test_repositories_without_the_served_version_are_refused_whoever_agrees() -> None:
    records = Records(versions=ALL)
    with pytest.raises(Conflict, match="detector version 1 is not there"):
        apply_fleet(records.view, file_of(FLEET), CONTEXT, agreed=True, lost=["detector version 1 is not there"])


def test_a_pool_that_is_dropped_is_kept_until_nothing_committed_names_it() -> None:
    records = Records(versions=ALL)
    decision = apply_fleet(records.view, file_of(renamed(FLEET)), CONTEXT, agreed=("pool cpu",))
    assert records.apply(decision)
    record = records.view.fleet
    assert record is not None
    assert set(record.kept["cpu"].processes) == {"cpu-1", "cpu-2"}
    fleet = file_of(renamed(FLEET)).fleet
    old = processes(file_of(FLEET).fleet, Path("/fleet"))

    def kept() -> dict[str, ProcessSpec]:
        view = records.view
        epoch = view.epoch or EpochRecord(0)
        return kept_processes(record, needed_pools(record, fleet, epoch, view.reconciled, view.open_rollouts))

    assert kept() == {name: old[name] for name in ("cpu-1", "cpu-2")}, "as they run"
    # Reconciled, and in progress.
    records.put(KEYS.reconciled, ReconciledRecord(2, dict.fromkeys(ALL, "1")))
    assert kept()
    # Aborted: nothing has moved.
    assert kept()
    # The next file keeps it, too, and retires it when it is carried out: that needs agreement as the first time.
    with pytest.raises(NotAgreed, match="takes away pool cpu"):
        apply_fleet(records.view, file_of(renamed(FLEET) + "# again"), CONTEXT)
    again = apply_fleet(records.view, file_of(renamed(FLEET) + "# again"), CONTEXT, agreed=("pool cpu",))
    assert again.answer.record.kept == record.kept
    # Committed, while gateways may still send there.
    moved = {name: msgspec.structs.replace(model, pools=("metal",)) for name, model in ALL.items()}
    records.put(KEYS.epoch, EpochRecord(8, moved))
    change = Change("1", "1", pools=("metal",), left=("cpu",))
    records.rollout("r1", DRAINING, {"tracker": change})
    assert kept()
    applied = apply_fleet(records.view, file_of(renamed(FLEET) + "# while it drains"), CONTEXT, agreed=True)
    assert applied.answer.record.kept == record.kept
    records.rollout("r1", DONE, {"tracker": change})
    assert kept() == {}
    assert apply_fleet(records.view, file_of(renamed(FLEET) + "# more"), CONTEXT).answer.record.kept == {}


def test_ports_of_a_kept_pool_are_refused_to_others() -> None:
    ported = FLEET.replace("workers: 2, min: 1, max: 4", "workers: 2, first_port: 7000")
    records = Records(text=ported, versions=ALL)
    moved_to = renamed(ported).replace("first_port: 7000", "first_port: 7100")
    assert records.apply(apply_fleet(records.view, file_of(moved_to), CONTEXT, agreed=True))
    # The rollout was aborted: nothing has moved.
    records.put(KEYS.reconciled, ReconciledRecord(2))
    taken = moved_to.replace("first_port: 7100", "first_port: 7003")
    with pytest.raises(Conflict, match=r"pools\.metal\.first_port: port 7003 is held by pool cpu"):
        apply_fleet(records.view, file_of(taken), CONTEXT, agreed=True)
    below = moved_to.replace("first_port: 7100", "first_port: 6994")
    assert records.apply(apply_fleet(records.view, file_of(below), CONTEXT, agreed=True))
    records.put(KEYS.reconciled, ReconciledRecord(3))
    with pytest.raises(Conflict, match="port 7000 is held by pool cpu"):
        scale(records.view, "metal", 3, CONTEXT)
    # Once all has moved they are free.
    moved = {name: msgspec.structs.replace(model, pools=("metal",)) for name, model in ALL.items()}
    records.put(KEYS.epoch, EpochRecord(8, moved))
    assert scale(records.view, "metal", 3, CONTEXT).operations
    assert apply_fleet(records.view, file_of(taken), CONTEXT, agreed=True).operations


def test_the_first_file_is_generation_one_and_tells_what_it_starts() -> None:
    records = Records(text=None)
    decision = apply_fleet(records.view, file_of(FLEET), CONTEXT)
    assert decision.answer.record.generation == 1
    assert ("start", "pool", "cpu") in {(step.action, step.kind, step.name) for step in decision.answer.steps}
    assert records.apply(decision)
    fleet = records.view.fleet
    assert fleet is not None
    assert (fleet.text, fleet.directory, fleet.by) == (FLEET, "/fleet", "ada@desk")
    assert fleet.spec["pools"]["cpu"]["workers"] == 2
    assert records.last_event()[:3] == ("ada@desk", "fleet applied", "generation 1")


def test_the_same_file_again_writes_nothing() -> None:
    records = Records(versions=served(detector="1", tracker="1", pipeline="1", embedder="1", reranker="1"))
    assert apply_fleet(records.view, file_of(FLEET), CONTEXT).operations == ()


def test_a_version_that_was_rolled_out_by_hand_stands_while_the_file_asks_for_the_same() -> None:
    versions = served(detector="1", tracker="2", pipeline="1", embedder="1", reranker="1")
    records = Records(versions=versions)
    records.put(KEYS.reconciled, ReconciledRecord(1, {"detector": "1", "tracker": "1"}))
    decision = apply_fleet(records.view, file_of(FLEET), CONTEXT)
    assert not any(step.action == "rollout" for step in decision.answer.steps)
    records.rollout("r15", DONE, {"tracker": Change("2", "1", pools=("cpu",))}, kind="rollback")
    (step,) = apply_fleet(records.view, file_of(FLEET), CONTEXT).answer.steps
    assert (step.action, step.name) == ("ignore", "tracker")
    assert step.detail == (
        "the file says 1; 2 is served since rollback r15; to change it: isochrone rollout start tracker=1"
    )
    changed = FLEET.replace("tracker: {version: 1", "tracker: {version: 3")
    steps = apply_fleet(records.view, file_of(changed), CONTEXT).answer.steps
    assert next(step.detail for step in steps if step.action == "rollout").startswith("tracker 2 → 3")


def test_a_pool_that_a_rollout_is_preparing_is_kept_by_the_next_file() -> None:
    """It may commit before it is aborted."""
    records = Records(renamed(FLEET), versions=ALL)
    records.rollout("r1", PREPARING, {"tracker": Change("1", "1", pools=("metal",), left=("cpu",))})
    decision = apply_fleet(records.view, file_of(FLEET), CONTEXT, agreed=True)
    assert set(decision.answer.record.kept["metal"].processes) == {"metal-1", "metal-2"}
    record, fleet = decision.answer.record, file_of(FLEET).fleet
    view = records.view
    epoch = view.epoch or EpochRecord(0)
    reconciled = ReconciledRecord(2)
    assert needed_pools(record, fleet, epoch, reconciled, view.open_rollouts) == {"metal"}
    assert needed_pools(record, fleet, epoch, reconciled, ()) == set()


def test_a_canary_of_a_stage_alone_is_refused_with_the_reason() -> None:
    records = Records(versions=ALL)
    stage = FLEET.replace("    version: 1\n", "    version: 2\n")
    with pytest.raises(Conflict) as caught:
        apply_fleet(records.view, file_of(stage), CONTEXT)
    assert "models.detector.rollout.canary: detector is a stage of pipeline" in str(caught.value)
    both = stage.replace("pipeline: {version: 1", "pipeline: {version: 2")
    assert apply_fleet(records.view, file_of(both), CONTEXT).operations
    without = stage.replace("canary: {steps: [10%, 50%], min_samples: 20}, ", "")
    assert apply_fleet(records.view, file_of(without), CONTEXT).operations


def test_a_plan_that_somebody_else_overtook_is_not_applied() -> None:
    records = Records()
    changed = file_of(FLEET.replace("workers: 2", "workers: 3"))
    with pytest.raises(Conflict, match=r"at generation 1 \(by bob@desk\), not 0"):
        apply_fleet(records.view, changed, CONTEXT, generation=0)
    decision = apply_fleet(records.view, changed, CONTEXT, generation=1)
    records.put(KEYS.fleet, records.entries[KEYS.fleet].value)
    assert not records.apply(decision)


def test_another_fleet_or_store_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"name: expected 'plant'.*given 'other'"):
        apply_fleet(Records().view, file_of(FLEET.replace("name: plant", "name: other")), CONTEXT)
    with pytest.raises(Conflict, match=r"store.url: cannot change"):
        apply_fleet(Records().view, file_of(FLEET + "store: {url: 'sqlite:elsewhere.db'}\n"), CONTEXT)


def test_scaling_changes_one_number_within_the_pools_limits() -> None:
    records = Records()
    decision = scale(records.view, "cpu", 4, CONTEXT)
    assert decision.answer.record.generation == 2
    assert [(step.action, step.processes) for step in decision.answer.steps] == [("start", ("cpu-3", "cpu-4"))]
    assert records.apply(decision)
    fleet = records.view.fleet
    assert fleet is not None
    assert fleet.spec["pools"]["cpu"]["workers"] == 4
    assert records.last_event()[1:] == ("scaled", "generation 2", "cpu from 2 to 4 workers")
    assert scale(records.view, "cpu", 4, CONTEXT).operations == ()


def test_scaling_asks_for_nothing_of_the_models() -> None:
    records = Records()
    records.put(KEYS.reconciled, ReconciledRecord(1, {"detector": "1"}))
    assert records.apply(scale(records.view, "cpu", 3, CONTEXT))
    assert records.view.read(KEYS.reconciled, ReconciledRecord) == ReconciledRecord(2, {"detector": "1"})
    # A file that is not reconciled yet is reconciled unchanged.
    records.put(KEYS.reconciled, ReconciledRecord(1, {"detector": "1"}))
    assert records.apply(scale(records.view, "cpu", 4, CONTEXT))
    assert records.view.read(KEYS.reconciled, ReconciledRecord) == ReconciledRecord(1, {"detector": "1"})


@pytest.mark.parametrize(
    ("pool", "workers", "error", "said"),
    [
        ("cpu", 0, InvalidArgument, "workers: expected 1 to 4, the pool's limits, given 0"),
        ("cpu", 5, InvalidArgument, "given 5"),
        ("cpus", 2, NotFound, "did you mean 'cpu'"),
        ("outside", 2, Conflict, "outside servers"),
    ],
)
def test_scaling_past_what_can_be_is_refused(pool: str, workers: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        scale(Records().view, pool, workers, CONTEXT)


# Rollouts under way.


def test_aborting_asks_the_leader_and_asking_twice_changes_nothing() -> None:
    records = Records()
    records.rollout("r1", PREPARING, CHANGES)
    decision = abort(records.view, "r1", "wrong artifact", CONTEXT)
    assert records.apply(decision)
    record = read_rollout(records, "r1")
    assert (record.state, record.abort_asked) == (PREPARING, "wrong artifact (by ada@desk)")
    assert records.last_event() == ("ada@desk", "rollout abort asked", "r1", "wrong artifact")
    assert abort(records.view, "r1", "again", CONTEXT).operations == ()
    records.rollout("r1", ABORTING, CHANGES)
    assert abort(records.view, "r1", "again", CONTEXT).operations == ()


@pytest.mark.parametrize(
    ("state", "said"), [(DONE, "rollback MODEL"), (ABORTED, "aborted already"), (DRAINING, "rollback' of detector")]
)
def test_what_is_committed_or_over_cannot_be_aborted(state: str, said: str) -> None:
    records = Records()
    records.rollout("r1", state, CHANGES)
    with pytest.raises(Conflict, match=said):
        abort(records.view, "r1", "", CONTEXT)


def test_a_rollout_that_moved_meanwhile_is_looked_at_again() -> None:
    records = Records()
    records.rollout("r1", PREPARING, CHANGES)
    decision = abort(records.view, "r1", "", CONTEXT)
    records.rollout("r1", DRAINING, CHANGES)
    assert not records.apply(decision)


def test_only_a_canary_can_be_promoted() -> None:
    records = Records()
    records.rollout("r1", CANARY, CHANGES, step=1)
    assert records.apply(promote(records.view, "r1", CONTEXT))
    assert read_rollout(records, "r1").promote_asked
    assert records.last_event()[1:] == ("canary promoted", "r1", "at step 2")
    assert promote(records.view, "r1", CONTEXT).operations == ()
    records.rollout("r1", PREPARING, CHANGES)
    with pytest.raises(Conflict, match="r1 is preparing; only one in canary"):
        promote(records.view, "r1", CONTEXT)
    records.rollout("r1", CANARY, CHANGES, abort_asked="no")
    with pytest.raises(Conflict, match="being aborted: no"):
        promote(records.view, "r1", CONTEXT)
    with pytest.raises(NotFound, match=r"'r9'.*the latest: r1"):
        promote(records.view, "r9", CONTEXT)


# Processes.


def with_processes() -> Records:
    records = Records()
    records.put(KEYS.worker("cpu-1"), WorkerRecord("cpu-1", "127.0.0.1", 1, 2))
    records.put(KEYS.gateway("gw-1"), GatewayRecord("gw-1", "127.0.0.1", 3))
    records.put(KEYS.known_gateway("gw-1"), b"x")
    records.put(KEYS.known_gateway("gw-2"), b"y")
    return records


@pytest.mark.parametrize("name", ["cpu-1", "gw-1", "gw-2"])
def test_draining_and_back(name: str) -> None:
    records = with_processes()
    assert records.apply(drain(records.view, name, CONTEXT))
    assert records.view.drains[name].at == CONTEXT.at
    assert drain(records.view, name, CONTEXT).operations == ()
    assert records.apply(undrain(records.view, name, CONTEXT))
    assert records.view.drains == {}
    assert records.last_event()[1:3] == ("undrain", name)


def test_draining_what_is_not_there_is_refused() -> None:
    records = with_processes()
    with pytest.raises(NotFound, match="did you mean 'cpu-1'"):
        drain(records.view, "cpu1", CONTEXT)
    with pytest.raises(NotFound, match="cpu-1 is not draining; draining: nothing"):
        undrain(records.view, "cpu-1", CONTEXT)


def test_only_a_gateway_that_is_not_heard_of_is_forgotten() -> None:
    records = with_processes()
    records.put(KEYS.gateway_set, b"before")
    decision = forget_gateway(records.view, "gw-2", CONTEXT)
    seen = records.entries[KEYS.gateway_set].revision
    assert records.apply(decision)
    assert records.view.known_gateways == ["gw-1"]
    # A commit compares this record: it must notice.
    assert records.entries[KEYS.gateway_set].revision > seen
    with pytest.raises(Conflict, match="gw-1 is registered"):
        forget_gateway(records.view, "gw-1", CONTEXT)
    with pytest.raises(NotFound, match="gateway 'gw-2'"):
        forget_gateway(records.view, "gw-2", CONTEXT)


def test_a_gateway_that_comes_back_meanwhile_is_not_forgotten() -> None:
    records = with_processes()
    decision = forget_gateway(records.view, "gw-2", CONTEXT)
    records.put(KEYS.gateway("gw-2"), GatewayRecord("gw-2", "127.0.0.1", 4))
    assert not records.apply(decision)


def test_every_refusal_has_a_status_of_its_own_kind() -> None:
    assert issubclass(Conflict, IsochroneError)
    assert (Conflict.http_status, Conflict.code) == (409, "conflict")


def test_the_last_worker_that_takes_requests_stops_only_if_that_was_agreed_to() -> None:
    records = Records(versions=ALL)
    for name in ("cpu-1", "cpu-2"):
        records.put(KEYS.workers + name, WorkerRecord(name, "127.0.0.1", 1, 1, pool="cpu"))
    assert scale(records.view, "cpu", 1, CONTEXT).operations
    records.put(KEYS.drain("cpu-1"), EventRecord(1.0, "ada", "drain", "cpu-1"))
    said = r"cpu-2 stops, and no worker that stays takes requests; cpu-1 is drained: isochrone undrain cpu-1"
    with pytest.raises(NotAgreed, match=said):
        scale(records.view, "cpu", 1, CONTEXT)
    assert scale(records.view, "cpu", 1, CONTEXT, agreed=True).operations
    assert scale(records.view, "cpu", 3, CONTEXT).operations
    records.put(KEYS.drain("cpu-2"), EventRecord(1.0, "ada", "drain", "cpu-2"))
    assert scale(records.view, "cpu", 1, CONTEXT).operations, "it takes nothing away"


def test_a_pool_without_workers_has_to_be_agreed_to() -> None:
    records = Records(text=FLEET.replace("min: 1", "min: 0"), versions=ALL)
    with pytest.raises(NotAgreed, match="takes away pool cpu"):
        scale(records.view, "cpu", 0, CONTEXT)
    assert scale(records.view, "cpu", 0, CONTEXT, agreed=True).operations
    assert scale(records.view, "cpu", 1, CONTEXT).operations


# The engine.


def test_the_engine_of_a_fleet_stays_until_another_is_named() -> None:
    records = Records(versions=ALL)
    assert records.apply(apply_fleet(records.view, file_of(FLEET), CONTEXT, engine="ray"))
    assert records.apply(apply_fleet(records.view, file_of(FLEET + "# again"), CONTEXT))
    assert records.apply(scale(records.view, "cpu", 3, CONTEXT))
    record = records.view.fleet
    assert record is not None
    assert (record.engine, record.generation) == ("ray", 4)
    assert apply_fleet(records.view, file_of(FLEET), CONTEXT, engine="local").answer.record.engine == "local"


def test_a_change_of_needs_restarts_processes_only_where_an_engine_chooses_machines() -> None:
    text = FLEET.replace("workers: 2, min: 1", "workers: 2, gpus: 1, min: 1")

    def restarts(engine: str) -> list[tuple[tuple[str, ...], str]]:
        records = Records(versions=ALL)
        records.apply(apply_fleet(records.view, file_of(FLEET), CONTEXT, engine=engine))
        steps = apply_fleet(records.view, file_of(text), CONTEXT).answer.steps
        return [(step.processes, step.detail) for step in steps if step.action == RESTART]

    assert restarts("local") == []
    ((names, detail),) = restarts("ray")
    assert names == ("cpu-1", "cpu-2")
    assert "gpus" in detail


def test_a_dropped_pool_keeps_its_needs() -> None:
    text = FLEET.replace("workers: 2, min: 1", "workers: 2, cpus: 4, placement: apart, min: 1")
    records = Records(text=text, versions=ALL)
    assert records.apply(apply_fleet(records.view, file_of(text), CONTEXT, engine="ray"))
    assert records.apply(apply_fleet(records.view, file_of(renamed(text)), CONTEXT, agreed=True))
    record = records.view.fleet
    assert record is not None
    running = processes(file_of(text).fleet, Path("/fleet"), "ray")
    assert kept_processes(record, ("cpu",)) == {name: running[name] for name in ("cpu-1", "cpu-2")}
