"""Plans, scaling and status of a fleet whose pools are autoscaled."""

from __future__ import annotations

import pytest
from rich.console import Console

from fleet_records import CONTEXT, KEYS, Records, file_of, served
from isochrone.cli.fleet.inspecting.status_view import picture
from isochrone.control.api.answers.status import fleet_status
from isochrone.control.api.messages import PoolStatus, Status, StoreState
from isochrone.control.placement.figures import StatedFigures
from isochrone.control.placement.fleet_inputs import of_records
from isochrone.control.requests.decisions import Conflict
from isochrone.control.requests.fleet import apply_fleet, scale
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import KUBERNETES, PoolSizeRecord

PLAIN = "name: plant\npools:\n  cpu: {workers: 2, min: 0, max: 4}\nmodels:\n  m: {version: 1}\n"
SCALED = PLAIN.replace("max: 4", "max: 4, autoscale: {zero_after_seconds: 60}")


def fleet(text: str = SCALED, size: int | None = None) -> Records:
    records = Records(text, served(m="1"))
    if size is not None:
        record = PoolSizeRecord(size, "load", "412 requests/s, capacity 390 per worker", 900.0)
        records.put(KEYS.pool_size("cpu"), record)
    return records


def steps(records: Records, text: str, engine: str | None = None) -> list[str]:
    answer = apply_fleet(records.view, file_of(text), CONTEXT, agreed=True, engine=engine).answer
    return [str(step) for step in answer.steps]


def status(records: Records) -> Status:
    return fleet_status(records.view, StoreState("sqlite:x", True, "", 1))


def shown(records: Records) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(picture(status(records), 960.0))
    return capture.get()


def test_plans_say_in_words_what_autoscale_changes_and_restart_nothing() -> None:
    added = steps(fleet(PLAIN), SCALED)
    assert added == ["change pool cpu: the autoscaler sets the number of workers, from 0 to 4"]
    changed = steps(fleet(), SCALED.replace("60}", "90, forecast: false}"))
    assert changed == ["change pool cpu: autoscale.zero_after_seconds: 60 → 90; autoscale.forecast: on → off"]
    removed = steps(fleet(), PLAIN)
    assert removed == ["change pool cpu: the autoscaler no longer sets the number of workers: the file does (2)"]


def test_plans_start_and_stop_from_the_present_size() -> None:
    assert "stop pool cpu: cpu-3, cpu-4" in steps(fleet(size=4), PLAIN)
    assert "start pool cpu: cpu-1, cpu-2" in steps(fleet(size=0), PLAIN)
    assert steps(fleet(size=4), SCALED.replace("max: 4", "max: 3")) == [
        "stop pool cpu: cpu-4",
        "change pool cpu: max: 4 → 3",
    ]
    assert steps(fleet(size=3), SCALED) == []


def test_an_empty_pool_is_no_dropped_pool() -> None:
    emptied = SCALED.replace("workers: 2", "workers: 0")
    decision = apply_fleet(fleet(size=0).view, file_of(emptied), CONTEXT)
    assert decision.answer.record.kept == {}
    assert decision.answer.steps == ()
    # Without autoscale, it would never have a worker again.
    gone = PLAIN.replace("workers: 2", "workers: 0")
    assert any(step.startswith("retire pool cpu") for step in steps(fleet(size=0), gone))


def test_in_a_cluster_autoscale_has_no_effect_and_the_plan_says_so() -> None:
    records = fleet(PLAIN)
    assert (
        "ignore pool cpu: autoscale has no effect in a cluster; kubernetes.autoscaler scales rendered pools with max"
        in (steps(records, f"{SCALED}kubernetes: {{require_secure: false}}\n", KUBERNETES))
    )


def test_an_autoscaled_pool_is_not_scaled_by_hand() -> None:
    with pytest.raises(Conflict, match=r"the autoscaler sets the workers of pool cpu: change pools\.cpu\.min or"):
        scale(fleet().view, "cpu", 3, CONTEXT)
    assert scale(fleet(PLAIN).view, "cpu", 3, CONTEXT).operations


def test_status_shows_size_reason_and_time() -> None:
    records = fleet(size=4)
    found = status(records)
    detail = "412 requests/s, capacity 390 per worker"
    assert found.pools == (PoolStatus("cpu", 4, 0, 4, "load", detail, 900.0),)
    assert [each.name for each in found.processes if each.role == "worker"] == ["cpu-1", "cpu-2", "cpu-3", "cpu-4"]
    text = shown(records)
    assert f"load ({detail}), 1 min ago" in text or f"load ({detail}), 60" in text
    assert "0 to 4" in text


def test_status_without_a_record_shows_the_size_of_the_file() -> None:
    assert status(fleet()).pools == (PoolStatus("cpu", 2, 0, 4),)
    assert "as in fleet.yaml" in shown(fleet())
    assert status(fleet(PLAIN)).pools == ()
    broken = fleet()
    broken.put(KEYS.pool_size("cpu"), b"{")
    assert status(broken).pools == (PoolStatus("cpu", 2, 0, 4),)
    assert KEYS.pool_size("cpu") in [fault.key for fault in status(broken).faults]


def test_a_model_without_a_worker_is_asleep_only_if_its_pools_are_empty() -> None:
    for size, state in ((0, "asleep"), (1, "unserved")):
        records = fleet(size=size)
        gateway = GatewayRecord("gw", "127.0.0.1", 8000, epoch=7, unserved={"m": "no worker has it"})
        records.put(KEYS.gateway("gw"), gateway)
        (model,) = status(records).models
        assert model.state == state
        assert bool(model.fault) is (state == "unserved")


def test_placement_offers_as_many_workers_as_the_pool_has() -> None:
    for size in (0, 3):
        found = of_records(fleet(size=size).view, StatedFigures())
        assert len(found.workers) == size
