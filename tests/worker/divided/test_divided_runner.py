"""Requests of a divided model, each division in the hands of the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from divided_bench import DIVISIONS, LOST, Bench, Queue, lose_the_core
from queued_requests import rows_of

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import (
    InvalidArgument,
    Unavailable,
)
from isochrone.models.divisions import Divisions, Link
from isochrone.protocol.messages import InferRequest
from isochrone.worker.divided.settings import DividedSettings
from isochrone.worker.divided.watching import DivisionWatch


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


# Sequences.


@pytest.mark.parametrize("division", ["", "edge", "prefer core"])
def test_requests_of_sequences_are_rejected(division: str) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="model 'm' is divided and keeps no state between requests"):
        bench.send(division, sequence=7)
    assert bench.is_clean()


# The load report.


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
