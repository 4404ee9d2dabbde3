"""Trace settings of a worker: what they turn on, per model and for all, and what is left of a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from traced_requests import request

from isochrone.errors import InvalidArgument, NotFound, Unsupported
from isochrone.observe.tracing.spans import Span
from isochrone.worker.tracing.model_trace import ModelTrace
from isochrone.worker.tracing.worker_tracing import WorkerTracing

ON = {"trace_mode": ["opentelemetry"], "trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]}


@dataclass
class Statistics:
    model_name: str
    trace: ModelTrace | None = None


class Nowhere:
    def export(self, spans: list[Span]) -> None: ...

    def close(self) -> None: ...


class Worker:
    def __init__(self, **given: list[str]) -> None:
        self.a, self.b = Statistics("a"), Statistics("b")
        self.served = [self.a, self.b]
        self.tracing = WorkerTracing(given, lambda: self.served, lambda settings: Nowhere())

    def kept(self) -> dict[str, int]:
        snapshot = self.tracing.snapshot()
        assert snapshot is not None
        return {reason: count for reason, count in snapshot.kept.items() if count}


def test_nothing_is_attached_while_it_is_off() -> None:
    for given in ({}, {"trace_mode": ["opentelemetry"]}, {**ON, "trace_mode": ["triton"], "trace_file": ["f"]}):
        worker = Worker(**given)
        assert worker.a.trace is worker.b.trace is None
        assert not worker.tracing.is_on
    assert worker.tracing.snapshot() is None
    assert not worker.tracing.exports


def test_settings_of_one_model_and_of_all() -> None:
    worker = Worker(**{**ON, "trace_level": ["OFF"]})
    worker.tracing.apply("a", {"trace_level": ["TIMESTAMPS"]})
    assert worker.a.trace is not None
    assert worker.b.trace is None
    assert worker.tracing.is_on
    worker.tracing.apply("", {"trace_level": ["TIMESTAMPS"]})
    assert worker.b.trace is not None
    worker.tracing.apply("a", {"trace_level": ["OFF"]})
    assert worker.a.trace is None
    worker.tracing.apply("a", {"trace_level": None})
    assert worker.a.trace is not None
    worker.tracing.apply("", {"trace_level": ["OFF"]})
    assert worker.a.trace is worker.b.trace is None
    assert not worker.tracing.is_on


def test_a_version_that_is_loaded_later_is_traced_as_its_model() -> None:
    worker = Worker(**ON)
    later = Statistics("a")
    worker.tracing.attach(later)
    assert later.trace is worker.a.trace is not None


def test_a_count_is_shared_by_all_models_that_inherit_it() -> None:
    worker = Worker(**ON)
    shown = worker.tracing.apply("", {"trace_count": ["3"]})
    assert shown["trace_count"] == ["3"]
    for statistics in (worker.a, worker.b, worker.a, worker.b, worker.b):
        assert statistics.trace is not None
        statistics.trace.finished(request(model=statistics.model_name))
    assert worker.kept() == {"share": 3}
    assert worker.tracing.apply("", {})["trace_count"] == ["0"]
    assert worker.tracing.apply("a", {})["trace_count"] == ["0"]
    # A model with a count of its own goes on.
    assert worker.tracing.apply("a", {"trace_count": ["5"]})["trace_count"] == ["5"]
    assert worker.a.trace is not None
    worker.a.trace.finished(request(model="a"))
    assert worker.tracing.apply("a", {})["trace_count"] == ["4"]
    assert worker.tracing.apply("", {})["trace_count"] == ["0"]


def test_requests_that_reach_no_version_are_kept_as_errors() -> None:
    worker = Worker(**ON)
    worker.tracing.apply("b", {"trace_level": ["OFF"]})
    for model in ("a", "b", "nowhere"):
        worker.tracing.rejected(request(model=model), NotFound("no"))
    assert worker.kept() == {"error": 2}


def test_the_slowest_are_not_lost_when_settings_change_or_the_worker_stops() -> None:
    worker = Worker(**{**ON, "trace_rate": ["0"]})
    assert worker.a.trace is not None
    worker.a.trace.finished(request(model="a"))
    assert worker.kept() == {}
    worker.tracing.apply("", {"trace_rate": ["1000"]})
    assert worker.kept() == {"slowest": 1}
    worker.a.trace.finished(request(model="a"))
    worker.tracing.close()
    assert worker.kept() == {"slowest": 2}


def test_options_are_shown_and_nobody_on_the_network_changes_them() -> None:
    worker = Worker(**ON, url=["collector:4318"])
    shown: dict[str, Any] = worker.tracing.apply("", {})
    assert shown["url"] == ["collector:4318"]
    assert shown["trace_mode"] == ["opentelemetry"]
    with pytest.raises(Unsupported, match="can not be updated through network protocol"):
        worker.tracing.apply("", {"url": ["http://elsewhere"]})
    with pytest.raises(InvalidArgument, match="cannot be changed while the server runs"):
        worker.tracing.apply("", {"trace_mode": ["triton"]})


def test_wrong_options_of_the_command_line() -> None:
    with pytest.raises(InvalidArgument, match="--trace-config opentelemetry,url"):
        Worker(**ON, url=["ftp://x"])
    with pytest.raises(InvalidArgument, match="--trace-config mode: expected triton or opentelemetry"):
        Worker(trace_mode=["jaeger"])


def test_settings_of_one_model_leave_the_others_alone() -> None:
    worker = Worker(**ON)
    before = worker.b.trace
    worker.tracing.apply("a", {"trace_rate": ["7"]})
    assert worker.b.trace is before


def test_a_version_that_drains_goes_by_new_settings() -> None:
    worker = Worker(**ON)
    draining = worker.a.trace
    assert draining is not None
    worker.served.remove(worker.a)
    worker.tracing.apply("a", {"trace_level": ["OFF"]})
    draining.finished(request(model="a"))
    draining.failed(request(model="a"), NotFound("x"))
    assert worker.kept() == {}
    worker.tracing.apply("a", {"trace_level": None})
    draining.finished(request(model="a"))
    assert worker.kept() == {"share": 1}


def test_processes_that_serve_as_one_share_a_count() -> None:
    counts = []
    for number in range(3):
        tracing = WorkerTracing({**ON, "trace_count": ["5"]}, list, lambda settings: Nowhere(), (number, 3))
        counts.append(int(tracing.apply("", {})["trace_count"][0]))
    assert counts == [2, 2, 1]


def test_failures_have_one_limit_for_all_models() -> None:
    worker = Worker(**{**ON, "trace_rate": ["0"], "failures_per_second": ["1"]})
    for statistics in (worker.a, worker.b) * 50:
        assert statistics.trace is not None
        statistics.trace.failed(request(model=statistics.model_name), NotFound("x"))
    snapshot = worker.tracing.snapshot()
    assert snapshot is not None
    assert snapshot.kept["error"] + snapshot.limited == 100
    assert snapshot.kept["error"] < 20
