"""Batches offered to a busy instance: who begins them, who may still join or leave them, and what an end does to them.

Real instance threads; a run whose value is negative lasts until the test lets it go. The tests wait for events and
never for time, but for one whose subject is a moment that has passed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queued_requests import LARGE_MLP, ExactCurve, RecordedRequest, plan_of, rows_of
from runner_bench import Bench, run, until

from isochrone.clock import MILLISECOND, NEVER, SECOND, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError, ModelFailed, Unavailable
from isochrone.worker.backends.interface import Executable
from isochrone.worker.execution.instances.batch import Batch
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.scheduling.batch_queue import BatchQueue, LevelPolicy, QueueRules


class Stepped(Executable):
    """Doubles; keeps what it was given, and holds a run with a negative value until that value's gate is open."""

    inline_allowed = False

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        #: One for every run that has begun.
        self.begun = threading.Semaphore(0)
        self.gates: defaultdict[float, threading.Event] = defaultdict(threading.Event)
        self.closed = threading.Event()

    def execute(self, inputs: dict[str, Any], outputs: tuple[str, ...] | None) -> dict[str, Any]:
        values = inputs["x"].ravel().tolist()
        self.batches.append(values)
        self.begun.release()
        for value in values:
            if value < 0:
                self.gates[value].wait()
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        self.closed.set()

    def wait_for_a_run(self) -> None:
        """Blocks the caller, the loop's thread included, until one more run has begun."""
        assert self.begun.acquire(timeout=60)


def offered(bench: Bench) -> list[float]:
    """The values in the offer that stands."""
    offer = bench.runner._ahead._offer if bench.runner._ahead is not None else None
    return [] if offer is None else [request.inputs["x"].item() for request in offer[1].requests]


async def with_an_offer(executable: Stepped, *values: float, **options: Any) -> tuple[Bench, list[RecordedRequest]]:
    """A bench whose one instance is held at -1, with ``values`` offered behind that."""
    bench = Bench(executable, **options)
    requests = [bench.send(-1)]
    await until(lambda: executable.batches)
    executable.wait_for_a_run()
    for value in values:
        requests.append(bench.send(value))
        await until(lambda: requests[-1].inputs["x"].item() in offered(bench))
    return bench, requests


async def end(bench: Bench, *executables: Stepped) -> None:
    for executable in executables:
        for value in (-1.0, -2.0, -3.0):
            executable.gates[value].set()
    await until(lambda: not bench.in_flight)
    bench.runner.release()
    bench.runner.close()


def test_an_offered_batch_begins_while_the_loop_stands_still() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, 3)
        executable.gates[-1].set()
        # The loop does not turn in here.
        executable.wait_for_a_run()
        assert executable.batches == [[-1], [3]]
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [-2, 6]
        assert requests[1].dispatched == requests[0].compute_end
        assert bench.runner.queue.pending == 0
        await end(bench, executable)

    run(scenario)


def test_newcomers_join_an_offer() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, 3, 4, 5)
        assert offered(bench) == [3, 4, 5]
        executable.gates[-1].set()
        executable.wait_for_a_run()
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [-2, 6, 8, 10]
        assert executable.batches == [[-1], [3, 4, 5]]
        await end(bench, executable)

    run(scenario)


def test_a_newcomer_with_less_time_overtakes_an_offer() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, 3, max_rows=1)
        requests.append(bench.send(4, now_ns() + 50 * SECOND))
        await until(lambda: offered(bench) == [4])
        executable.gates[-1].set()
        await bench.answers(*requests)
        assert executable.batches == [[-1], [4], [3]]
        await end(bench, executable)

    run(scenario)


def test_a_request_that_comes_when_the_offer_has_begun_runs_behind_it() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, -2)
        executable.gates[-1].set()
        executable.wait_for_a_run()
        # The loop has not heard of it; it must not take this one for a companion of what runs.
        requests.append(bench.send(5))
        executable.gates[-2].set()
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [-2, -4, 10]
        assert executable.batches == [[-1], [-2], [5]]
        await end(bench, executable)

    run(scenario)


def test_a_chain_of_offers_answers_everybody_once() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench = Bench(executable, max_rows=4)
        requests = [bench.send(value) for value in range(100)]
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [2 * value for value in range(100)]
        assert all(len(request.answers) == 1 for request in requests)
        assert [value for batch in executable.batches for value in batch] == list(range(100))
        assert (bench.in_flight, bench.runner.queue.rows) == (0, 0)
        await end(bench, executable)

    run(scenario)


def test_what_is_offered_still_waits_in_the_queue() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, -2, 3)
        assert bench.runner.pending == 2
        executable.gates[-1].set()
        executable.wait_for_a_run()
        await bench.answers(requests[0])
        assert bench.runner.pending == 0
        await end(bench, executable)

    run(scenario)


def test_the_cancelled_in_an_offer_cost_no_compute() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, 3, 4)
        requests[1].cancelled = True
        executable.gates[-1].set()
        executable.wait_for_a_run()
        answers = await bench.answers(*requests)
        assert answers[1] == "dropped"
        assert answers[2]["y"].item() == 8
        assert executable.batches == [[-1], [4]]
        await end(bench, executable)

    run(scenario)


def test_an_offer_everybody_has_left_runs_nothing() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, 3, 4)
        requests[1].cancelled = requests[2].cancelled = True
        executable.gates[-1].set()
        assert (await bench.answers(*requests))[1:] == ["dropped", "dropped"]
        assert executable.batches == [[-1]]
        assert await bench.answers(bench.send(5))
        await end(bench, executable)

    run(scenario)


def test_offered_requests_expire_while_the_run_before_them_hangs() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable)
        late = bench.send(3, now_ns() + 10 * SECOND)
        patient = bench.send(4)
        await until(lambda: offered(bench) == [3, 4])
        bench.runner.check_stuck(now_ns() + 11 * SECOND)
        assert isinstance(late.answers[0], DeadlineExceeded)
        executable.gates[-1].set()
        answers = await bench.answers(*requests, patient)
        assert answers[1]["y"].item() == 8
        assert executable.batches == [[-1], [4]]
        assert len(late.answers) == 1
        await end(bench, executable)

    run(scenario)


def test_an_offer_that_would_be_late_is_left_for_the_loop_to_refuse() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable)
        late = bench.send(3, now_ns() + 250 * MILLISECOND)
        await until(lambda: offered(bench) == [3])
        ahead = bench.runner._ahead
        assert ahead is not None
        assert ahead._offer is not None
        latest = ahead._offer[1].latest_start
        assert latest < late.deadline
        await until(lambda: now_ns() > latest)
        executable.gates[-1].set()
        answers = await bench.answers(*requests, late)
        assert isinstance(answers[1], DeadlineExceeded)
        assert executable.batches == [[-1]]
        await end(bench, executable)

    run(scenario)


def test_a_hung_run_gives_its_offer_to_the_replacement() -> None:
    async def scenario() -> None:
        hung, fresh = Stepped(), Stepped()
        bench, requests = await with_an_offer(hung, 3, execution_timeout_ns=SECOND)
        bench.replacements = [fresh]
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        answers = await bench.answers(*requests)
        assert isinstance(answers[0], ModelFailed)
        assert answers[1]["y"].item() == 6
        assert (hung.batches, fresh.batches) == ([[-1]], [[3]])
        hung.gates[-1].set()
        await until(hung.closed.is_set)
        await end(bench, fresh)

    run(scenario)


def test_a_run_over_its_limit_that_has_ended_meanwhile_is_not_given_up() -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, -2, execution_timeout_ns=SECOND)
        executable.gates[-1].set()
        executable.wait_for_a_run()
        # The callback of the first run is scheduled, and the second run has started.
        bench.runner.check_stuck(now_ns() + 2 * SECOND)
        executable.gates[-2].set()
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [-2, -4]
        await end(bench, executable)

    run(scenario)


@pytest.mark.parametrize("unload", [False, True])
def test_who_left_before_a_run_that_hangs_is_not_forgotten(unload: bool) -> None:
    async def scenario() -> None:
        hung, fresh = Stepped(), Stepped()
        bench, requests = await with_an_offer(hung, -2, 3, execution_timeout_ns=SECOND)
        bench.replacements = [fresh]
        requests[2].cancelled = True
        hung.gates[-1].set()
        hung.wait_for_a_run()
        await bench.answers(requests[0])
        if unload:
            bench.runner.fail_all()
        else:
            bench.runner.check_stuck(now_ns() + 2 * SECOND)
        assert isinstance(requests[1].answers[0], IsochroneError)
        assert requests[2].answers == ["dropped"]
        assert bench.in_flight == 0
        hung.gates[-2].set()
        bench.runner.release()
        bench.runner.close()
        await until(hung.closed.is_set)

    run(scenario)


@pytest.mark.parametrize("begun", [False, True])
def test_unloading_with_an_offer_outstanding_answers_everybody_once(begun: bool) -> None:
    async def scenario() -> None:
        executable = Stepped()
        bench, requests = await with_an_offer(executable, -2)
        waiting = bench.send(9, now_ns() + 200 * SECOND)
        if begun:
            executable.gates[-1].set()
            executable.wait_for_a_run()
        bench.runner.fail_all()
        bench.runner.release()
        bench.runner.close()
        answers = [*requests, waiting]
        assert all(isinstance(request.answers[0], Unavailable) for request in answers)
        assert bench.in_flight == 0
        executable.gates[-1].set()
        executable.gates[-2].set()
        await until(executable.closed.is_set)
        # What the thread still had to say has been said by now.
        await asyncio.sleep(0)
        assert [len(request.answers) for request in answers] == [1, 1, 1]
        assert executable.batches == ([[-1], [-2]] if begun else [[-1]])

    run(scenario)


def test_of_two_instances_the_one_free_first_takes_what_was_offered_to_the_other() -> None:
    async def scenario() -> None:
        executables = Stepped(), Stepped()
        bench = Bench(*executables, max_rows=1)
        held = [bench.send(-1), bench.send(-2)]
        await until(lambda: all(each.batches for each in executables))
        waiting = bench.send(3)
        await until(lambda: offered(bench) == [3])
        ahead = bench.runner._ahead
        assert ahead is not None
        assert ahead._offer is not None
        chosen = ahead._offer[0]
        # The other one ends first, against all expectation.
        (other,) = [each for each in bench.runner.instances if each is not chosen]
        assert isinstance(other.executable, Stepped)
        assert other.running is not None
        other.executable.gates[other.running.requests[0].inputs["x"].item()].set()
        (answer,) = await bench.answers(waiting)
        assert answer["y"].item() == 6
        assert other.executable.batches[-1] == [3]
        for each in executables:
            each.gates[-1].set()
            each.gates[-2].set()
        await bench.answers(*held)
        assert sum(len(each.batches) for each in executables) == 3
        await end(bench, *executables)

    run(scenario)


def test_two_instances_never_share_a_request() -> None:
    async def scenario() -> None:
        executables = Stepped(), Stepped()
        bench = Bench(*executables, max_rows=2)
        requests = [bench.send(value) for value in range(60)]
        answers = await bench.answers(*requests)
        assert [answer["y"].item() for answer in answers] == [2 * value for value in range(60)]
        ran = sorted(value for each in executables for batch in each.batches for value in batch)
        assert ran == list(range(60))
        await end(bench, *executables)

    run(scenario)


def batch_of(*values: float) -> Batch:
    return Batch([RecordedRequest(plan_of(), {"x": rows_of(value)}) for value in values], len(values))


@pytest.mark.parametrize("withdrawn", [False, True])
def test_an_instance_leaves_what_was_taken_back_or_would_be_late(withdrawn: bool) -> None:
    async def scenario() -> None:
        executable = Stepped()
        finished: list[Batch] = []
        instance = Instance(executable, "m", 8, (), asyncio.get_running_loop(), lambda _, batch: finished.append(batch))
        instance.start(batch_of(-1), MILLISECOND)
        executable.wait_for_a_run()
        following = batch_of(3)
        if not withdrawn:
            following.latest_start = now_ns() - 1
        instance.offer(following)
        if withdrawn:
            assert instance.withdraw_offer()
        executable.gates[-1].set()
        await until(lambda: finished)
        # Late: it lies there until the loop takes it back; withdrawn: there is nothing to take.
        assert instance.withdraw_offer() is not withdrawn
        instance.close()
        assert executable.batches == [[-1]]

    run(scenario)


def test_an_instance_knows_when_it_is_free_behind_what_follows() -> None:
    async def scenario() -> None:
        executable = Stepped()
        instance = Instance(executable, "m", 8, (), asyncio.get_running_loop(), lambda *_: None)
        first, second = batch_of(-1), batch_of(3)
        instance.start(first, 5 * MILLISECOND)
        executable.wait_for_a_run()
        assert instance.free_at == instance.busy_since + 5 * MILLISECOND
        instance.offer_started(second, 7 * MILLISECOND)
        assert instance.free_at == instance.busy_since + 12 * MILLISECOND
        first.compute_end = instance.busy_since + 6 * MILLISECOND
        instance.ended(first)
        assert instance.running is second
        assert instance.following is None
        assert first.occupied == 6 * MILLISECOND
        assert instance.free_at == first.compute_end + 7 * MILLISECOND
        executable.gates[-1].set()
        instance.close()

    run(scenario)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([None, 4, 8, 15, 40]),
        st.integers(0, 2),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=25,
)


@given(
    requests=REQUESTS,
    levels=st.integers(1, 2),
    preferred=st.sampled_from([(), (2, 4)]),
    delay=st.sampled_from([0, 3 * MILLISECOND]),
    timeout=st.sampled_from([0, 10 * MILLISECOND]),
    wait_ms=st.sampled_from([0, 1, 5, 12, 60]),
    newcomers=st.integers(0, 3),
)
def test_peek_and_confirm_are_a_take(
    requests: list[tuple[int, int | None, int, int, bool]],
    levels: int,
    preferred: tuple[int, ...],
    delay: int,
    timeout: int,
    wait_ms: int,
    newcomers: int,
) -> None:
    policies = tuple(LevelPolicy(0, timeout, level == 2) for level in range(1, levels + 1))
    rules = QueueRules(8, preferred, delay, levels, 1, 20 * MILLISECOND, policies)
    taking, peeking = (BatchQueue(rules, ExactCurve(LARGE_MLP)) for _ in range(2))
    now = SECOND

    def push(queue: BatchQueue, number: int, rows: int, deadline: int, priority: int, shape: int) -> RecordedRequest:
        request = RecordedRequest(
            plan_of(rows, shape=shape, priority=priority), arrived=now, deadline=deadline, request_id=str(number)
        )
        try:
            queue.push(request, now)
        except IsochroneError:
            request.fail(DeadlineExceeded("refused"))
        return request

    for number, (rows, deadline_ms, priority, shape, gone) in enumerate(requests):
        deadline = NEVER if deadline_ms is None else now + deadline_ms * MILLISECOND
        for queue in (taking, peeking):
            push(queue, number, rows, deadline, priority, shape).cancelled = gone
        now += MILLISECOND // 2
    now += wait_ms * MILLISECOND
    waiting = peeking.requests
    choice = peeking.peek(now)
    assert peeking.requests == waiting
    assert not peeking.rejected
    # Those who come between are neither in the batch nor in its way.
    late_comers = [push(peeking, 1000 + number, 1, NEVER, 1, 5) for number in range(newcomers)]
    taken = taking.take(now) if taking.requests else []
    if choice is None:
        # Only what had waited beyond its own time may be left to take.
        assert not taken or all(request.dispatched == now for request in taken)
        assert not taking.requests
        return
    peeking.confirm(choice)
    assert [entry.request.id for entry in choice.taken] == [request.id for request in taken]
    assert choice.rows == sum(request.plan.batch_size for request in taken)
    # Late requests stay for the next ``take``; everything else is the same.
    dropped = len(choice.late)
    assert peeking.requests == taking.requests + dropped + len(late_comers)
    assert np.all([entry.request.id not in {request.id for request in taken} for entry in choice.late])
    left = {request.id for request in taking.clear()} | {request.id for request, _ in taking.rejected}
    assert {request.id for request in peeking.clear()} == left | {request.id for request in late_comers}
    assert peeking.rows == 0
