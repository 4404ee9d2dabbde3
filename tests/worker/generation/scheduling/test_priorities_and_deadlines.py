"""Deadlines between tokens beside priorities and streams that nobody reads: who is refused, and who is late."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import FixedTimes

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded
from isochrone.worker.backends.generative import Chosen, GenerationLimits
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad, levels_of, refusal
from isochrone.worker.generation.scheduling.scheduler import StepScheduler
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.step_times import StepCosts
from isochrone.worker.generation.scheduling.steps import Step

LIMITS = GenerationLimits(context_tokens=1024, block_tokens=4, blocks=10_000, rows=16, prefill_tokens=32)
COSTS = StepCosts(fixed=1e6, row=2e5, prefill=5e4).without_margins()

#: Priority, tokens, deadline between tokens in ms (0: none), and whether its client reads nothing.
Member = tuple[int, int, float, bool]
members = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.sampled_from([0.0, 1.5, 2.5, 4.0]), st.booleans()), max_size=12
)


def scheduler_with(given_members: list[Member]) -> StepScheduler:
    scheduler = exact_scheduler()
    for priority, tokens, inter_ms, is_paused in given_members:
        sequence = sequence_of(tokens, priority, inter_ms)
        sequence.is_paused = is_paused
        sequence.give_blocks(scheduler.pool, len(scheduler.waiting) + 1, 1024)
        scheduler._wait(sequence)
    return scheduler


def exact_scheduler() -> StepScheduler:
    scheduler = StepScheduler(LIMITS)
    scheduler.times = FixedTimes(scheduler.limits, COSTS)
    return scheduler


def sequence_of(tokens: int, priority: int, inter_ms: float, arrived: int = 0, max_tokens: int = 20) -> TokenSequence:
    inter_token_ns = round(inter_ms * MILLISECOND)
    parameters = GenerationParameters(max_tokens=max_tokens, temperature=0, inter_token_ns=inter_token_ns)
    return TokenSequence([1] * tokens, parameters, priority=priority, arrived=arrived)


def is_refused(given_members: list[Member], candidate: Candidate) -> bool:
    return refusal(scheduler_with(given_members).load(0), candidate, 0, 1000) is not None


@given(members, st.integers(1, 3), st.sampled_from([0.0, 1.5, 2.5, 4.0]))
def test_only_its_own_priority_and_higher_ones_refuse_a_request(
    given_members: list[Member], priority: int, inter_ms: float
) -> None:
    candidate = Candidate(8, priority, 0, NEVER, round(inter_ms * MILLISECOND))
    refused = is_refused(given_members, candidate)
    assert refused == is_refused([each for each in given_members if each[0] <= priority], candidate)
    # Nobody waits for the tokens of a paused stream, but it may go on at any time: it is a row without a deadline.
    paused = [(p, tokens, 0.0 if is_paused else ms, False) for p, tokens, ms, is_paused in given_members]
    assert refused == is_refused(paused, candidate)
    # What is more important is refused no sooner.
    if priority > 1:
        assert refused or not is_refused(given_members, Candidate(8, priority - 1, 0, NEVER, candidate.inter_token_ns))
    rows = 1 + sum(each[0] <= priority for each in given_members)
    asked = [ms for p, _, ms, is_paused in given_members if ms and p <= priority and not is_paused]
    asked += [inter_ms] if inter_ms else []
    took_ms = COSTS.estimate(rows, 0, LIMITS.block_tokens) / MILLISECOND
    assert refused == bool(asked and took_ms > min(asked))


def test_levels_add_up() -> None:
    levels = levels_of([(2, 5, 0), (1, 3, 9), (2, 7, 4), (2, 1, 8)])
    assert levels == ((1, 1, 3, 9), (2, 3, 13, 4))
    load = EngineLoad(LIMITS, COSTS, waiting=4, levels=levels)
    load = load.with_arrivals([((3, True, 5, 0), 6, 2), ((2, True, 1, 0), 10, 3)])
    assert load.levels == ((1, 1, 3, 9), (2, 4, 23, 3), (3, 1, 6, 2))
    assert load.waiting == 6
    assert load.prompts == (((2, True, 1, 0), 10), ((3, True, 5, 0), 6))
    assert [load.tightest_ns(priority) for priority in (0, 1, 2, 3)] == [0, 9, 3, 2]


class Traffic:
    """Steps that take what the scheduler expects, without its caution."""

    def __init__(self) -> None:
        self.scheduler = exact_scheduler()
        self.now = 0
        self.refused = 0
        self.tokens = 0
        #: Sequences whose clients did not read at some time: others may have been admitted meanwhile.
        self.unread: set[TokenSequence] = set()
        #: Late tokens: the sequence, and whether a higher priority was there since the token before.
        self.late: list[tuple[TokenSequence, bool]] = []
        self._higher_at: dict[TokenSequence, int] = {}

    def arrive(self, sequence: TokenSequence) -> None:
        try:
            self.scheduler.admit(sequence, self.now)
        except DeadlineExceeded:
            self.refused += 1

    def step(self) -> Step:
        scheduler = self.scheduler
        step = scheduler.schedule(self.now)
        present = list(scheduler.sequences())
        began = self.now
        for each in present:
            if any(other.priority < each.priority for other in present):
                self._higher_at[each] = began
            if each.is_paused:
                self.unread.add(each)
        self.now += round(COSTS.expected(step.decode_rows, step.context, step.prefill)) if step.rows else MILLISECOND
        before = {each: each.last_at for each in step.sequences}
        chosen = [None if row.sampling is None else Chosen(1, 0.0) for row in step.rows]
        for output in scheduler.completed(step, chosen, self.now, 0):
            sequence = output.sequence
            last, asked = before[sequence], sequence.parameters.inter_token_ns
            self.tokens += 1
            if last and asked and self.now - last > asked and sequence not in self.unread:
                self.late.append((sequence, self._higher_at.get(sequence, -1) >= last))
        return step


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3), st.sampled_from([0.0, 0.05]))
def test_nobody_is_late_but_for_a_higher_priority(seed: int, priorities: int, pauses: float) -> None:
    chance, traffic = random.Random(seed), Traffic()
    for _ in range(150):
        present = list(traffic.scheduler.sequences())
        if len(present) < LIMITS.rows and chance.random() < 0.4:
            inter_ms = chance.choice([0.0, 0.0, 2.0, 3.0, 6.0])
            tokens, priority = chance.randrange(1, 80), chance.randint(1, priorities)
            traffic.arrive(sequence_of(tokens, priority, inter_ms, traffic.now, chance.randrange(1, 40)))
        for each in present:
            if chance.random() < pauses:
                (traffic.scheduler.resume if each.is_paused else traffic.scheduler.pause)(each)
        traffic.step()
    assert all(is_explained for _, is_explained in traffic.late)
    if priorities == 1:
        assert not traffic.late
    assert traffic.tokens


def test_lower_priorities_are_left_out_where_they_would_break_a_deadline() -> None:
    traffic = Traffic()
    scheduler = traffic.scheduler
    for _ in range(6):
        traffic.arrive(sequence_of(4, 2, 0))
    lower_with_a_deadline = sequence_of(4, 3, 4.0, max_tokens=40)
    traffic.arrive(lower_with_a_deadline)
    traffic.step()
    traffic.step()
    assert len(scheduler.running) == 7
    # Steps with all eight would take 2.6 ms and more.
    urgent = sequence_of(4, 1, 2.2, traffic.now, max_tokens=8)
    traffic.arrive(urgent)
    assert not traffic.refused
    steps = []
    while urgent in scheduler.sequences():
        steps.append(traffic.step().sequences)
    # Beside it there is room for four, those of the lowest priority last.
    assert all(urgent in sequences for sequences in steps)
    assert {len(sequences) for sequences in steps[1:]} == {5}
    assert all(lower_with_a_deadline not in sequences for sequences in steps[1:])
    assert traffic.step().decode_rows == 7
    assert all(sequence is lower_with_a_deadline for sequence, _ in traffic.late)


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_lost_deadline_leaves_nobody_out(is_paused: bool) -> None:
    """Two of the same priority, whose deadline has passed: it is lost with and without the third."""
    scheduler = exact_scheduler()
    for priority, inter_ms in ((1, 2.0), (1, 0.0), (2, 0.0)):
        scheduler.admit(sequence_of(3, priority, inter_ms), 0)
    first = scheduler.schedule(0)
    scheduler.completed(first, [Chosen(1, 0.0)] * 3, MILLISECOND, 0)
    if is_paused:
        scheduler.pause(scheduler.running[0])
    assert scheduler.schedule(100 * MILLISECOND).decode_rows == 3 - is_paused
