"""Requests of a divided model, each division in the hands of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from queued_requests import RecordedRequest, plan_of, rows_of

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    NotFound,
    Unavailable,
)
from isochrone.models.divisions import Division, Divisions, Link
from isochrone.protocol.messages import InferRequest
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.divided.settings import DividedSettings
from isochrone.worker.divided.watching import DivisionWatch
from isochrone.worker.statistics import ModelStatistics

DIVISIONS = (
    Division("core", "m.core", 0, 2_000_000, 100, 10, 0),
    Division("cut-3", "m.cut-3", 1_000_000, 2_000_000, 50, 10, 7),
    Division("cut-9", "m.cut-9", 4_000_000, 1_000_000, 10, 10, 8),
    Division("edge", "m.edge", 30_000_000, 0, 0, 0, 9),
)


class Queue:
    """The runner of a served model, of which only the wait is read."""

    wait = 0

    def estimated_wait(self, now: int) -> int:
        return self.wait


class Version:
    """A served model whose requests wait until the test answers them."""

    def __init__(self, name: str) -> None:
        self.model_name = name
        self.model_version = "1"
        self.runner = Queue()
        self.held = 0
        self.waiting: list[InferRequest] = []

    def hold(self) -> None:
        self.held += 1

    def request_ended(self) -> None:
        self.held -= 1

    def submit(self, request: InferRequest) -> None:
        self.waiting.append(request)


class Asking(RecordedRequest):
    """With a header, perhaps."""

    asked = ""

    @property
    def division(self) -> str:
        return self.asked


class Bench:
    def __init__(self) -> None:
        self.versions = {each.name: Version(each.model) for each in DIVISIONS}
        self.in_flight = 0
        # Without a time between looks, each failure counts.
        settings = DividedSettings(Divisions("core", Link(0.001, 1e6), DIVISIONS), look_ns=0)
        self.runner = DividedRunner("m", settings, self.resolve, ModelStatistics("m", "1"), self.request_ended)  # type: ignore[arg-type]
        self.runner.watch._look()

    def resolve(self, name: str, version: str) -> Version:
        for each in self.versions.values():
            if each.model_name == name:
                return each
        raise NotFound(f"no model {name}")

    def request_ended(self) -> None:
        self.in_flight -= 1

    def send(self, division: str = "", deadline: int = 0, sequence: int = 0) -> Asking:
        plan = plan_of()
        plan.sequence_id = sequence
        request = Asking(plan, {"x": rows_of(1)}, now_ns(), deadline or now_ns() + 60 * SECOND)
        request.asked = division
        self.in_flight += 1
        try:
            self.runner.submit(request)
        except IsochroneError:
            self.request_ended()
            raise
        return request

    def waiting(self, division: str) -> InferRequest:
        return self.versions[division].waiting.pop(0)

    def is_clean(self) -> bool:
        held = any(version.held or version.waiting for version in self.versions.values())
        return not self.in_flight and not held and not self.runner._running


def test_the_present_division_runs_a_request_that_names_none() -> None:
    bench = Bench()
    request = bench.send()
    bench.waiting("core").complete({"y": rows_of(5)})
    assert request.answers[0]["y"] == rows_of(5)
    assert request.compute_end
    assert bench.is_clean()


@pytest.mark.parametrize(("asked", "run"), [("edge", "edge"), ("cut-9", "cut-9"), ("core", "core"), ("split", "cut-3")])
def test_the_division_that_a_request_names_runs_it(asked: str, run: str) -> None:
    bench = Bench()
    bench.send(asked)
    bench.waiting(run).complete({})
    assert bench.is_clean()


def test_split_is_the_best_cut_of_the_moment() -> None:
    bench = Bench()
    del bench.versions["cut-3"]
    bench.runner.watch._look()
    bench.send("split")
    bench.waiting("cut-9").complete({})


def test_an_unknown_name_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="one of edge, split, core, cut-3, cut-9, given 'middle'"):
        Bench().send("middle")


def test_a_division_whose_model_is_not_loaded_is_not_offered() -> None:
    bench = Bench()
    del bench.versions["core"]
    bench.send()  # before the watch has seen it: the next best
    bench.waiting("cut-3").complete({})
    with pytest.raises(Unavailable, match=r"division 'core' is not offered: no model m\.core"):
        bench.send("core")
    bench.runner.watch._look()
    assert bench.runner.watch.present != "core"
    assert bench.runner.watch.late_ns("core") is None
    assert bench.is_clean()


LOST = ConnectionLost("the connection broke")
LOST.losses = 1


@pytest.mark.parametrize(
    "error", [Unavailable("cannot connect").not_begun(), LOST, NotFound("no such model"), DeadlineExceeded("late")]
)
def test_a_core_that_is_lost_costs_no_request(error: IsochroneError) -> None:
    bench = Bench()
    request = bench.send()
    bench.waiting("core").fail(error)
    assert not request.answers
    outputs = {"y": rows_of(3)}
    bench.waiting("edge").complete(outputs)
    assert request.answers == [outputs]
    assert bench.runner.fallbacks == 1
    assert bench.is_clean()


TWICE = ConnectionLost("the connection broke again")
TWICE.losses = 2


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (Unavailable("cannot connect"), {"division": "core"}),
        (Unavailable("cannot connect"), {"sequence": 7}),
        (Unavailable("cannot connect"), {"deadline": 1}),
        (ModelFailed("wrong"), {}),
        (InvalidArgument("wrong"), {}),
        (TWICE, {}),
    ],
)
def test_other_requests_fail_where_they_run(error: IsochroneError, given: dict[str, Any]) -> None:
    bench = Bench()
    request = bench.send(**given)
    bench.waiting("core").fail(error)
    (answer,) = request.answers
    assert type(answer) is type(error)
    assert "divided model 'm', division 'core': " in str(answer)
    assert bench.is_clean()


def test_a_failure_on_the_edge_is_not_repeated() -> None:
    bench = Bench()
    request = bench.send("")
    bench.waiting("core").fail(Unavailable("cannot connect"))
    bench.waiting("edge").fail(Unavailable("stopping"))
    assert isinstance(request.answers[0], Unavailable)
    assert bench.is_clean()


def test_requests_that_wait_for_a_core_that_is_lost_run_on_the_edge() -> None:
    bench = Bench()
    waits, named = bench.send(), bench.send("core")
    for _ in range(3):
        bench.runner.watch.unreachable("m.core")
    assert bench.runner.watch.present == "edge"
    first, second = bench.waiting("core"), bench.waiting("core")
    assert (first.cancelled, second.cancelled) == (True, False)
    answers: list[dict[str, Any]] = [{"y": rows_of(number)} for number in range(3)]
    bench.waiting("edge").complete(answers[0])
    assert waits.answers == [answers[0]]
    # What the core still does with it changes nothing.
    first.complete(answers[1])
    second.complete(answers[2])
    assert (waits.answers, named.answers) == ([answers[0]], [answers[2]])
    assert bench.is_clean()


def test_a_caller_that_has_gone_is_not_answered_again() -> None:
    bench = Bench()
    request = bench.send()
    request.cancelled = True
    child = bench.waiting("core")
    assert child.cancelled
    child.dropped()
    assert request.answers == ["dropped"]
    assert bench.is_clean()


@pytest.mark.parametrize("end", [lambda child: child.complete({}), lambda child: child.fail(Unavailable("away"))])
def test_an_unload_fails_requests_that_outlast_it(end: Callable[[InferRequest], None]) -> None:
    bench = Bench()
    request = bench.send()
    bench.runner.fail_all()
    assert "being unloaded" in str(request.answers[0])
    end(bench.waiting("core"))
    assert len(request.answers) == 1
    assert bench.is_clean()


def test_failures_that_come_together_are_one() -> None:
    bench = Bench()
    watch = DivisionWatch("m", "1", DividedSettings(Divisions("core", Link(0.001, 1e6), DIVISIONS)), bench.resolve, int)  # type: ignore[arg-type]
    for _ in range(9):
        watch.unreachable("m.core")
    assert watch.core_answers


def test_a_queue_on_the_edge_shows_at_once() -> None:
    bench = Bench()
    watch = bench.runner.watch
    assert watch.late_ns("edge") == 30 * MILLISECOND
    bench.versions["edge"].runner.wait = 100 * MILLISECOND
    assert watch.late_ns("edge") == 130 * MILLISECOND
    bench.versions["edge"].runner.wait = 0
    assert watch.late_ns("edge") == 30 * MILLISECOND
    bench.versions["cut-3"].runner.wait = 100 * MILLISECOND
    watch._look()
    assert watch.best("split") == "cut-9"
