"""Processor sharing, step by step: the share of each request as others come and go and cores change."""

from __future__ import annotations

import pytest
from answering import Callers, no_delay
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND
from isochrone.simulate.engine import START_NS
from isochrone.simulate.processes.calls import LOST
from isochrone.simulate.processes.sharing_worker import SharingWorker


def worker_of(callers: Callers, cores: float = 1.0) -> SharingWorker:
    return SharingWorker(0, callers.engine, no_delay, 10 * MILLISECOND, cores)


def test_alone_it_takes_its_own_time_and_never_more_than_one_core() -> None:
    callers = Callers()
    worker = worker_of(callers, cores=8)
    callers.send(worker, 0, "a")
    assert callers.times() == pytest.approx({"a": 10}, abs=0.01)


def test_two_on_one_core_take_turns() -> None:
    callers = Callers()
    worker = worker_of(callers)
    callers.send(worker, 0, "a")
    callers.send(worker, 5, "b")
    # a has 5 left when b comes and gets half a core; b has 5 left when a is done.
    assert callers.times() == pytest.approx({"a": 15, "b": 20}, abs=0.01)


def test_a_short_one_overtakes_a_long_one() -> None:
    callers = Callers()
    worker = worker_of(callers)
    callers.send(worker, 0, "long", work=10.0)
    callers.send(worker, 10, "short", work=0.1)
    assert callers.times() == pytest.approx({"short": 12, "long": 101}, abs=0.01)


def test_cores_that_come_and_go_change_the_pace_at_once() -> None:
    callers = Callers()
    worker = worker_of(callers, cores=2)
    for name in "ab":
        callers.send(worker, 0, name)
    callers.at(5, worker.set_cores, 1.0)
    callers.at(10, worker.set_cores, 2.0)
    # 5 ms at full pace, 5 ms at half, the rest at full.
    assert callers.times() == pytest.approx({"a": 12.5, "b": 12.5}, abs=0.01)


def test_a_caller_who_leaves_makes_room() -> None:
    callers = Callers()
    worker = worker_of(callers)
    leaving = callers.send(worker, 0, "leaving", work=5.0)
    callers.send(worker, 0, "staying")
    callers.at(10, lambda now: setattr(leaving, "over", True))
    callers.at(10, worker.abandoned, leaving)
    assert callers.times() == pytest.approx({"staying": 15}, abs=0.01)
    assert len(callers.answers) == 1
    assert worker.in_flight == 0


def test_a_stall_stops_the_clock_of_everybody_inside() -> None:
    callers = Callers()
    worker = worker_of(callers)
    callers.send(worker, 0, "a")
    callers.at(4, worker.stall)
    callers.at(104, worker.recover)
    assert callers.times() == pytest.approx({"a": 110}, abs=0.01)


def test_a_stop_fails_everybody_inside() -> None:
    callers = Callers()
    worker = worker_of(callers)
    callers.send(worker, 0, "a")
    callers.send(worker, 1, "b")
    callers.at(4, worker.stop)
    assert callers.run() == [(4, "a", LOST), (4, "b", LOST)]
    assert worker.in_flight == 0


def test_its_own_word_is_what_requests_took_among_as_many_others() -> None:
    callers = Callers()
    worker = worker_of(callers)
    callers.send(worker, 0, "a")
    callers.run(until_ms=50)
    assert worker.report(START_NS + 50 * MILLISECOND).run_ns == pytest.approx(10 * MILLISECOND, rel=0.01)
    for at in (100, 101, 102):
        callers.send(worker, at, "crowd")
    callers.run(until_ms=103)
    report = worker.report(START_NS + 103 * MILLISECOND)
    assert (report.in_flight, report.queue) == (3, 2)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 5)), min_size=1, max_size=12), st.floats(0.5, 4))
def test_no_work_is_lost_or_done_twice(calls: list[tuple[float, float]], cores: float) -> None:
    callers = Callers()
    worker = worker_of(callers, cores)
    for number, (at, work) in enumerate(calls):
        callers.send(worker, at, str(number), work)
    answers = callers.run()
    assert len(answers) == len(calls)
    done = sum(work for _, work in calls) * 10 * MILLISECOND
    assert worker.used == pytest.approx(done, rel=1e-6, abs=len(calls) * 10)
    # No request is faster than alone, and all together are not faster than the cores.
    ended = {name: at for at, name, _ in answers}
    for number, (at, work) in enumerate(calls):
        assert ended[str(number)] >= at + work * 10 - 0.01
    assert max(ended.values()) >= min(at for at, _ in calls) + done / MILLISECOND / max(cores, 1) / len(calls) - 0.01
