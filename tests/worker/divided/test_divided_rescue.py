"""Requests of a divided model that run on the edge in place of the core: which ones, once, and answered once."""

from __future__ import annotations

from typing import Any

import pytest
from divided_bench import LOST, Bench, find_the_core, lose_the_core
from hypothesis import given as drawn
from hypothesis import strategies as st
from queued_requests import rows_of

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
from isochrone.worker.divided.overdue import patience


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


# A link that is useless while the core still answers probes.


@pytest.mark.parametrize("present", ["edge", "cut-9"])
def test_requests_that_are_overdue_run_on_the_edge_once_their_division_is_left(present: str) -> None:
    bench = Bench()
    wish, order, plain = bench.send("prefer core"), bench.send("core"), bench.send()
    later = now_ns() + SECOND
    bench.runner.check_stuck(later)
    assert not bench.versions["edge"].waiting
    bench.runner.watch._replanner.present = present
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


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_request_that_the_edge_rejects_still_waits_for_the_core(is_lost: bool) -> None:
    bench = Bench()
    request = bench.send()
    bench.versions["edge"].rejection = QueueFull("full").not_begun()
    if is_lost:
        lose_the_core(bench)
    else:
        bench.runner.watch._replanner.present = "edge"
        for _ in range(3):
            bench.runner.check_stuck(now_ns() + SECOND)
    assert bench.runner.requests["edge"] == 1  # one attempt
    assert bench.runner.fallbacks == 0
    child = bench.waiting("core")
    assert not child.cancelled
    child.complete({})
    assert request.answers == [{}]
    assert bench.is_clean()


def test_the_error_of_the_core_is_the_answer_if_the_edge_rejects() -> None:
    bench = Bench()
    request = bench.send()
    bench.versions["edge"].rejection = QueueFull("full").not_begun()
    bench.waiting("core").fail(LOST)
    (error,) = request.answers
    assert isinstance(error, ConnectionLost)
    assert "division 'core'" in str(error)
    assert bench.is_clean()


def test_a_request_that_its_division_rejects_at_once_runs_on_the_edge() -> None:
    bench = Bench()
    bench.versions["core"].rejection = QueueFull("max_in_flight allows no more").not_begun()
    request = bench.send()
    bench.waiting("edge").complete({})
    assert request.answers == [{}]
    assert bench.is_clean()
