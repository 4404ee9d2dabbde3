"""The fifo worker: batches, instances, deadlines, load reports, failures."""

from __future__ import annotations

import pytest
from answering import Callers, no_delay

from isochrone.clock import MILLISECOND
from isochrone.simulate.engine import START_NS
from isochrone.simulate.fleet import batch_times
from isochrone.simulate.processes.calls import ANSWERED, FAILED, LOST, TOO_LATE, UNREACHABLE
from isochrone.simulate.processes.fifo_worker import FifoWorker


def worker_of(callers: Callers, curve: dict[int, float], instances: int = 1, speed: float = 1.0) -> FifoWorker:
    return FifoWorker(0, callers.engine, no_delay, batch_times(curve), instances, speed)


def test_one_after_another() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    for name in "abc":
        callers.send(worker, 0, name)
    assert callers.times() == pytest.approx({"a": 10, "b": 20, "c": 30}, abs=0.01)


def test_what_waits_leaves_in_one_batch_up_to_the_largest() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10, 3: 18})
    for name in "abcde":
        callers.send(worker, 0, name)
    # a alone; then b, c, d together in 18 ms; then e.
    assert callers.times() == pytest.approx({"a": 10, "b": 28, "c": 28, "d": 28, "e": 38}, abs=0.01)


def test_instances_work_side_by_side_and_speed_counts() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10}, instances=2, speed=2.0)
    for name in "abc":
        callers.send(worker, 0, name)
    assert callers.times() == pytest.approx({"a": 5, "b": 5, "c": 10}, abs=0.01)


def test_a_batch_takes_the_mean_of_its_members_work() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10, 2: 10})
    callers.send(worker, 0, "a")
    callers.send(worker, 1, "b", work=1.0)
    callers.send(worker, 1, "c", work=3.0)
    assert callers.times() == pytest.approx({"a": 10, "b": 30, "c": 30}, abs=0.01)


def test_what_has_passed_its_deadline_costs_no_compute() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "a")
    callers.send(worker, 1, "late", deadline_ms=5)
    callers.send(worker, 2, "b")
    answers = callers.run()
    assert [(name, outcome) for _, name, outcome in answers] == [("late", TOO_LATE), ("a", ANSWERED), ("b", ANSWERED)]
    assert answers[-1][0] == pytest.approx(20, abs=0.01)


def test_its_own_word_counts_what_runs_and_what_waits() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10, 2: 12})
    for name in "abcd":
        callers.send(worker, 0, name)
    callers.run(until_ms=4)
    report = worker.report(START_NS + 4 * MILLISECOND)
    assert (report.in_flight, report.queue) == (4, 3)
    # 6 ms of the running one, a batch of two, a batch of one.
    assert report.wait_ns == pytest.approx((6 + 12 + 10) * MILLISECOND, rel=0.01)
    assert report.run_ns == pytest.approx(10 * MILLISECOND, rel=0.01)


def test_a_caller_who_leaves_the_queue_saves_the_work_and_one_who_leaves_a_run_does_not() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    running, queued = callers.send(worker, 0, "running"), callers.send(worker, 0, "queued")
    callers.send(worker, 0, "last")
    for call in (running, queued):
        callers.at(1, lambda now, left: setattr(left, "over", True), call)
        callers.at(1, worker.abandoned, call)
    assert callers.times() == pytest.approx({"last": 20}, abs=0.01)
    assert len(callers.answers) == 1
    assert worker.in_flight == 0


def test_a_stop_fails_everything_and_what_comes_after_until_it_is_back() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "running")
    callers.send(worker, 1, "queued")
    callers.at(5, worker.stop)
    callers.send(worker, 6, "refused")
    callers.at(20, worker.recover)
    callers.send(worker, 21, "served")
    assert callers.run() == [
        (5, "running", LOST),
        (5, "queued", LOST),
        (6, "refused", UNREACHABLE),
        (pytest.approx(31, abs=0.01), "served", ANSWERED),
    ]
    assert worker.in_flight == 0


def test_a_stall_delays_everything_by_its_length() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "running")
    callers.at(5, worker.stall)
    callers.send(worker, 6, "waiting")
    callers.at(105, worker.recover)
    assert callers.times() == pytest.approx({"running": 110, "waiting": 120}, abs=0.01)


def test_a_stop_during_a_stall_fails_what_waited_at_the_door_too() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "running")
    callers.at(5, worker.stall)
    callers.send(worker, 6, "at the door")
    callers.at(8, worker.stop)
    assert sorted(callers.run()) == [(8, "at the door", LOST), (8, "running", LOST)]


def test_a_slow_one_is_slow_from_its_next_batch_on() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "a")
    callers.at(5, worker.slow, 0.1)
    callers.send(worker, 6, "b")
    callers.at(50, worker.recover)
    callers.send(worker, 60, "c")
    assert callers.times() == pytest.approx({"a": 10, "b": 110, "c": 120}, abs=0.02)


def test_one_that_errs_fails_what_is_new_at_once_and_finishes_what_it_has() -> None:
    callers = Callers()
    worker = worker_of(callers, {1: 10})
    callers.send(worker, 0, "old")
    callers.at(5, worker.err)
    callers.send(worker, 6, "new")
    assert callers.run() == [(6, "new", FAILED), (pytest.approx(10, abs=0.01), "old", ANSWERED)]
