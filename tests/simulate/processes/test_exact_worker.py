"""The exact worker drives the real batch queue as the worker's runner does."""

from __future__ import annotations

from itertools import repeat

import pytest
from answering import Callers, no_delay

from isochrone.clock import MILLISECOND
from isochrone.simulate.engine import START_NS
from isochrone.simulate.fleet import batch_times
from isochrone.simulate.processes.calls import ANSWERED, LOST, REFUSED, TOO_LATE
from isochrone.simulate.processes.exact_worker import ExactWorker
from isochrone.worker.scheduling.batch_queue import LevelPolicy, QueueRules


def worker_of(
    callers: Callers, curve: dict[int, float], delay_ms: float = 0, levels: int = 1, instances: int = 1
) -> ExactWorker:
    rules = QueueRules(
        max_rows=max(curve),
        delay_ns=int(delay_ms * MILLISECOND),
        levels=levels,
        default_level=levels,
        policies=(LevelPolicy(),) * levels,
    )
    return ExactWorker(0, callers.engine, no_delay, batch_times(curve), rules, repeat(1.0), instances)


def test_what_waits_leaves_in_one_batch() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10, 4: 16})
    for name in "abcde":
        callers.send(worker, 0, name)
    assert callers.times() == pytest.approx({"a": 10, "b": 26, "c": 26, "d": 26, "e": 26}, abs=0.01)


def test_a_queue_delay_waits_for_company() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10, 4: 16}, delay_ms=5)
    callers.send(worker, 0, "a")
    callers.send(worker, 3, "b")
    # Together after a's 5 ms: a batch of two takes 12 ms.
    assert callers.times() == pytest.approx({"a": 17, "b": 17}, abs=0.01)


def test_what_cannot_be_met_is_refused_at_the_door() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "fits", deadline_ms=15)
    callers.send(worker, 1, "does not", deadline_ms=16)
    assert callers.run() == [(1, "does not", REFUSED), (pytest.approx(10, abs=0.01), "fits", ANSWERED)]


def test_the_earlier_deadline_goes_first_and_the_higher_class_before_it() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10}, levels=2)
    callers.send(worker, 0, "running", priority=2)
    callers.send(worker, 1, "late", deadline_ms=200, priority=2)
    callers.send(worker, 2, "early", deadline_ms=100, priority=2)
    callers.send(worker, 3, "high", deadline_ms=300, priority=1)
    assert [name for _, name, _ in callers.run()] == ["running", "high", "early", "late"]


def test_the_curve_learns_a_slowdown_and_the_report_tells_it() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    before = worker.report(START_NS).run_ns
    callers.at(0, worker.slow, 0.5)
    for number in range(100):
        callers.send(worker, number * 50, str(number))
    callers.run()
    assert before == pytest.approx(10 * MILLISECOND, rel=0.2)
    assert worker.report(START_NS).run_ns >= 19 * MILLISECOND


def test_a_stop_fails_everything_and_the_next_life_is_not_disturbed_by_the_last() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "running")
    callers.send(worker, 1, "queued")
    callers.at(5, worker.stop)
    callers.at(6, worker.recover)
    callers.send(worker, 7, "served")
    assert callers.run() == [
        (5, "running", LOST),
        (5, "queued", LOST),
        (pytest.approx(17, abs=0.01), "served", ANSWERED),
    ]
    assert worker.in_flight == 0


def test_a_caller_who_leaves_the_queue_saves_the_work() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "running")
    leaving = callers.send(worker, 1, "leaving")
    callers.send(worker, 2, "last")
    callers.at(5, lambda now: setattr(leaving, "over", True))
    callers.at(5, worker.abandoned, leaving)
    assert callers.times() == pytest.approx({"running": 10, "last": 20}, abs=0.01)
    assert worker.in_flight == 0


def test_a_stall_delays_everything_by_its_length() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "running")
    callers.at(5, worker.stall)
    callers.send(worker, 6, "waiting")
    callers.at(105, worker.recover)
    assert callers.times() == pytest.approx({"running": 110, "waiting": 120}, abs=0.01)


def test_what_became_late_behind_a_slow_run_is_told_by_the_regular_check() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.at(0, worker.slow, 0.1)
    callers.send(worker, 0, "slow")
    callers.send(worker, 1, "behind", deadline_ms=30)
    callers.at(25, worker.check)
    callers.at(50, worker.check)
    answers = callers.run()
    assert [(name, outcome) for _, name, outcome in answers] == [("behind", TOO_LATE), ("slow", ANSWERED)]
    assert answers[0][0] == 50
    assert worker.in_flight == 0
