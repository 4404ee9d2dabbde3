"""The load that a worker reports: fresh within a millisecond, and cheap however many answers carry it."""

from __future__ import annotations

from base64 import b64decode
from types import SimpleNamespace
from typing import Any

import pytest

from isochrone.clock import MICROSECOND, MILLISECOND
from isochrone.errors import NotFound
from isochrone.protocol.headers.orca import parse_orca_binary, parse_orca_header
from isochrone.worker import load as load_module
from isochrone.worker.load import WorkerLoad


class Models:
    """A catalog whose models have a runner each; counts how often all are added up."""

    def __init__(self, count: int) -> None:
        self.added_up = 0
        self.served = {f"m{index}": _served(index) for index in range(count)}

    def all_versions(self) -> list[Any]:
        self.added_up += 1
        return list(self.served.values())

    def find(self, name: str, version: str) -> Any:
        if name not in self.served:
            raise NotFound(name)
        return self.served[name]


def _served(index: int) -> Any:
    runner = SimpleNamespace(
        pending=index,
        estimated_wait=lambda now: index * 1000 * MICROSECOND,
        estimated_run=lambda: 7 * MICROSECOND,
        least_run=lambda: 5 * MICROSECOND,
    )
    return SimpleNamespace(runner=runner, in_flight=2 * index, statistics=SimpleNamespace(answered=0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    instant = SimpleNamespace(now=10 * MILLISECOND, step=0)

    def now_ns() -> int:
        instant.now += instant.step
        return instant.now

    monkeypatch.setattr(load_module, "now_ns", now_ns)
    return instant


def test_a_model_has_its_own_wait_and_the_workers_other_figures(clock: Any) -> None:
    load = WorkerLoad(Models(3))  # type: ignore[arg-type]
    worker, model = load.report(), load.report("m1")
    assert (worker["named_metrics.queue_depth"], worker["named_metrics.in_flight"]) == (3, 6)
    assert (worker["named_metrics.estimated_wait_us"], model["named_metrics.estimated_wait_us"]) == (2000, 1000)
    assert (model["named_metrics.estimated_run_us"], model["named_metrics.queue_depth"]) == (7, 3)
    assert load.report("unknown") is worker
    assert "named_metrics.inter_token_us" not in {*worker, *model}, "no model generates"


def test_answers_within_a_millisecond_share_a_report_and_what_it_looks_like(clock: Any) -> None:
    models = Models(3)
    load = WorkerLoad(models)  # type: ignore[arg-type]
    first = load.report("m1")
    clock.now += MILLISECOND
    assert load.report("m1") is first
    assert first.header(b"text") is first.header(b"text")
    assert first.base64 is first.base64
    models.served["m1"].runner.pending = 40
    clock.now += 1
    second = load.report("m1")
    assert second["named_metrics.queue_depth"] == 42
    assert models.added_up == 2


def test_every_form_says_the_same(clock: Any) -> None:
    report = WorkerLoad(Models(2)).report("m1")  # type: ignore[arg-type]
    padded = report.base64 + b"=" * (-len(report.base64) % 4)
    text = parse_orca_header(report.header(b"text"))
    assert text == parse_orca_header(report.header(b"json")) == parse_orca_binary(b64decode(padded))
    assert text["estimated_wait_us"] == 1000


def test_adding_up_many_models_takes_a_small_share_of_the_time(clock: Any) -> None:
    """Each look at the clock takes half a millisecond here, so adding up takes that long."""
    models = Models(3)
    load = WorkerLoad(models)  # type: ignore[arg-type]
    clock.step = MILLISECOND // 2
    begun = clock.now
    for _ in range(2000):
        load.report("m1")
    assert models.added_up <= (clock.now - begun) / (16 * MILLISECOND) + 1


def test_a_worker_that_stops_says_so_in_the_next_answer(clock: Any) -> None:
    load = WorkerLoad(Models(1))  # type: ignore[arg-type]
    assert load.report("m0")["named_metrics.draining"] == 0
    load.drain()
    assert load.report("m0")["named_metrics.draining"] == load.report()["named_metrics.draining"] == 1


def test_clients_that_weigh_workers_by_orca_get_the_inverse_of_the_time_of_a_request(clock: Any) -> None:
    models = Models(3)
    load = WorkerLoad(models)  # type: ignore[arg-type]
    first = load.report("m1")
    took = (1000 * MICROSECOND + 7 * MICROSECOND) / 1e9
    # Before there is a rate the weight is the same.
    assert first["rps_fractional"] / first["application_utilization"] == pytest.approx(1 / took)
    clock.now += 2_000 * MILLISECOND
    models.served["m1"].statistics.answered = 500
    report = load.report("m1")
    assert report["rps_fractional"] == 250
    assert report["application_utilization"] == pytest.approx(250 * took)
    models.served["m1"].statistics.answered = 0  # unloaded, and another version in its place
    clock.now += 2_000 * MILLISECOND
    assert 0 < load.report("m1")["rps_fractional"] < 0.01
    assert load.report()["application_utilization"] > load.report("m1")["application_utilization"] > 0
