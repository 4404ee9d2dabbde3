"""Requests of a divided model, each division in the hands of the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from queued_requests import RecordedRequest, plan_of, rows_of

from isochrone.clock import MILLISECOND, NEVER, SECOND, now_ns
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    NotFound,
    QueueFull,
    Unavailable,
    UnsupportedEncoding,
)
from isochrone.models.divisions import Division, Divisions, Link
from isochrone.protocol.messages import InferRequest
from isochrone.worker.divided.overdue import patience
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.divided.settings import DividedSettings
from isochrone.worker.remote.link import Crossing
from isochrone.worker.statistics import ModelStatistics

DIVISIONS = (
    Division("core", "m.core", 0, 2_000_000, 100, 10, 0),
    Division("cut-3", "m.cut-3", 1_000_000, 2_000_000, 50, 10, 7),
    Division("cut-9", "m.cut-9", 4_000_000, 1_000_000, 10, 10, 8),
    Division("edge", "m.edge", 30_000_000, 0, 0, 0, 9),
)


class Version:
    """A served model whose requests wait until the test answers them."""

    def __init__(self, name: str) -> None:
        self.model_name = name
        self.model_version = "1"
        self.runner: Any = None
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
    def __init__(self, divisions: Sequence[Division] = DIVISIONS) -> None:
        self.versions = {each.name: Version(each.model) for each in divisions}
        self.in_flight = 0
        settings = DividedSettings(Divisions("core", Link(0.001, 1e6), tuple(divisions)))
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
    "error",
    [
        Unavailable("cannot connect").not_begun(),
        LOST,
        NotFound("no such model"),
        DeadlineExceeded("late"),
        QueueFull("max_in_flight allows no more").not_begun(),
        UnsupportedEncoding("no zstd there"),
    ],
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


def lose_the_core(bench: Bench) -> None:
    for _ in range(3):
        bench.runner.watch.unreachable("m.core")


def find_the_core(bench: Bench) -> None:
    bench.runner.watch.crossed("m.core", Crossing(now_ns(), 400, 1_000, 0))


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_core_that_is_lost_twice_costs_one_run_on_the_edge(is_answered: bool) -> None:
    bench = Bench()
    request = bench.send()
    lose_the_core(bench)
    if is_answered:
        bench.waiting("edge").complete({})
    find_the_core(bench)
    lose_the_core(bench)
    if not is_answered:
        bench.waiting("edge").complete({})
    bench.waiting("core").complete({})
    assert request.answers == [{}]
    assert bench.runner.requests == {"core": 1, "edge": 1}
    assert bench.runner.fallbacks == 1
    assert bench.is_clean()


def test_an_unload_after_a_rescue_answers_once() -> None:
    bench = Bench()
    request = bench.send()
    lose_the_core(bench)
    bench.runner.fail_all()
    assert len(request.answers) == 1
    bench.waiting("core").dropped()
    bench.waiting("edge").complete({})
    assert len(request.answers) == 1
    assert bench.is_clean()


def test_several_requests_that_fail_in_one_turn_are_answered_once_each() -> None:
    bench = Bench()
    requests = [bench.send() for _ in range(8)]
    children = [bench.waiting("core") for _ in requests]
    for child in children[:6]:  # as a remote model does: the request, then the report
        child.dropped() if child.cancelled else child.fail(LOST)
        bench.runner.watch.unreachable("m.core")
    children[6].complete({})
    children[7].dropped()
    edge = bench.versions["edge"]
    assert len(edge.waiting) == 8
    while edge.waiting:
        bench.waiting("edge").complete({})
    assert [request.answers for request in requests] == [[{}]] * 8
    assert bench.is_clean()


def test_losses_of_an_earlier_run_count_and_a_part_may_have_run() -> None:
    bench = Bench()
    request = bench.send()
    bench.waiting("core").fail(LOST)
    bench.waiting("edge").fail(Unavailable("the process is away").not_begun())
    (error,) = request.answers
    assert (error.losses, error.unprocessed) == (1, False)
    rescued = bench.send()
    lose_the_core(bench)
    bench.waiting("edge").fail(QueueFull("full").not_begun())
    bench.waiting("core").dropped()
    assert not rescued.answers[0].unprocessed
    assert bench.is_clean()


def test_a_request_that_nothing_has_run_of_stays_unprocessed() -> None:
    bench = Bench()
    request = bench.send()
    bench.waiting("core").fail(Unavailable("cannot connect").not_begun())
    bench.waiting("edge").fail(QueueFull("full").not_begun())
    assert request.answers[0].unprocessed


# Wishes.


@pytest.mark.parametrize(("asked", "run"), [("edge", "edge"), ("cut-9", "cut-9"), ("core", "core"), ("split", "cut-3")])
def test_a_wish_is_granted_if_it_is_offered(asked: str, run: str) -> None:
    bench = Bench()
    bench.send(f"prefer {asked}")
    bench.waiting(run).complete({})
    assert bench.is_clean()


def test_a_wish_that_is_not_offered_is_dropped() -> None:
    bench = Bench()
    lose_the_core(bench)
    for asked in ("core", "split", "cut-9"):
        bench.send(f"prefer {asked}")
        bench.waiting("edge").complete({})
    bench.send("core")
    bench.waiting("core").complete({})
    assert bench.is_clean()


def test_a_kind_that_the_plan_does_not_have_is_a_wish_but_no_order() -> None:
    bench = Bench([each for each in DIVISIONS if not each.is_cut])
    bench.send("prefer split")
    bench.waiting("core").complete({})
    with pytest.raises(InvalidArgument, match="one of edge, core, given 'split'"):
        bench.send("split")


@pytest.mark.parametrize("asked", ["middle", "prefer middle", "prefer", "prefer core edge"])
def test_unknown_names_are_rejected_also_as_wishes(asked: str) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="x-isochrone-division: expected one of"):
        bench.send(asked)
    assert bench.is_clean()


def test_a_wish_that_fails_runs_on_the_edge() -> None:
    bench = Bench()
    fails, waits = bench.send("prefer core"), bench.send("prefer core")
    bench.waiting("core").fail(LOST)
    bench.waiting("edge").complete({})
    lose_the_core(bench)
    bench.waiting("edge").complete({})
    bench.waiting("core").dropped()
    assert (fails.answers, waits.answers) == ([{}], [{}])
    assert bench.is_clean()


# A link that is useless while the core still answers probes.


def test_requests_that_are_overdue_run_on_the_edge_once_it_is_present() -> None:
    bench = Bench()
    wish, order, plain = bench.send("prefer core"), bench.send("core"), bench.send()
    later = now_ns() + SECOND
    bench.runner.check_stuck(later)
    assert not bench.versions["edge"].waiting
    bench.runner.watch._replanner.present = "edge"
    bench.runner.check_stuck(now_ns())
    assert not bench.versions["edge"].waiting
    for _ in range(3):
        bench.runner.check_stuck(later)
    assert len(bench.versions["edge"].waiting) == 2
    for _ in range(2):
        bench.waiting("edge").complete({})
    for _ in range(3):
        child = bench.waiting("core")
        child.dropped() if child.cancelled else child.complete({"y": rows_of(1)})
    assert (wish.answers, plain.answers) == ([{}], [{}])
    assert list(order.answers[0]) == ["y"]
    assert bench.is_clean()


def test_an_overdue_request_stays_where_the_edge_would_be_too_late() -> None:
    bench = Bench()
    request = bench.send(deadline=now_ns() + SECOND)
    bench.runner.watch._replanner.present = "edge"
    bench.runner.check_stuck(request.deadline - 20 * MILLISECOND)  # the edge takes 30 ms
    assert not bench.versions["edge"].waiting
    bench.runner.check_stuck(request.deadline - 40 * MILLISECOND)
    assert len(bench.versions["edge"].waiting) == 1


@drawn(st.floats(0, 1e12), st.integers(-SECOND, 100 * SECOND) | st.just(NEVER))
def test_patience_leaves_time_for_the_edge(late: float, left: int) -> None:
    given = patience(late, left)
    assert given >= 100 * MILLISECOND
    assert given <= max(100 * MILLISECOND, 2 * late)
    assert given <= max(100 * MILLISECOND, left / 2)


# Sequences.


@pytest.mark.parametrize("division", ["", "edge", "prefer core"])
def test_requests_of_sequences_are_rejected(division: str) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="model 'm' is divided and keeps no state between requests"):
        bench.send(division, sequence=7)
    assert bench.is_clean()


# The load report.


class Queue:
    """A runner with a queue."""

    def __init__(self, wait_ms: int, run_ms: int) -> None:
        self.wait, self.run = wait_ms * MILLISECOND, run_ms * MILLISECOND

    def estimated_wait(self, now: int) -> int:
        return self.wait

    def estimated_run(self) -> int:
        return self.run


@pytest.mark.parametrize(
    ("wait", "run", "measured", "expected"),
    [
        (500, 30, 530, (500, 30)),  # the requests of the last seconds have waited as well
        (0, 30, 530, (0, 30)),  # the queue has just become empty
        (500, 30, 30, (500, 30)),  # it has just grown
        (500, 0, 530, (500, 30)),  # nothing has run yet that the runner knows
    ],
)
def test_waits_on_the_edge_are_reported_once(wait: int, run: int, measured: int, expected: tuple[int, int]) -> None:
    bench = Bench()
    bench.versions["edge"].runner = Queue(wait, run)
    watch = bench.runner.watch
    watch._replanner.present = "edge"
    watch._edge.add("edge", now_ns(), measured * MILLISECOND)
    watch._look()
    found = bench.runner.estimated_wait(now_ns()), bench.runner.estimated_run()
    assert tuple(round(each / MILLISECOND) for each in found) == expected


def test_waits_before_a_first_stage_are_reported_once() -> None:
    bench = Bench()
    bench.versions["cut-3"].runner = Queue(200, 30)
    watch = bench.runner.watch
    watch._replanner.present = "cut-3"
    watch._edge.add("cut-3", now_ns(), 210 * MILLISECOND)
    watch._look()
    found = bench.runner.estimated_wait(now_ns()) + bench.runner.estimated_run()
    assert found == int(watch.times["cut-3"].expected)
