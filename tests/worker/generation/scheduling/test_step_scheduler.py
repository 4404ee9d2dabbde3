"""The scheduler of steps, with a model that notices wrong blocks: whatever comes, everything ends, and rightly."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toy_model import END, LIMITS, FixedTimes, ToyModel, answer_of

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded, InvalidArgument, QueueFull
from isochrone.worker.backends.generative import FailedRow, GenerationLimits
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.scheduler import Batching, SchedulerRules, StepScheduler
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.step_times import StepCosts
from isochrone.worker.generation.scheduling.steps import Step

TINY = GenerationLimits(context_tokens=24, block_tokens=2, blocks=14, rows=3, prefill_tokens=5)
STEP_NS = MILLISECOND


def sequence_of(
    text: str = "hello",
    max_tokens: int = 4,
    *,
    priority: int = 1,
    arrived: int = 0,
    deadline: int = NEVER,
    first_ms: float = 0,
    inter_ms: float = 0,
    ends: bool = False,
) -> TokenSequence:
    parameters = GenerationParameters(
        max_tokens=max_tokens,
        temperature=0,
        seed=1,
        first_token_ns=round(first_ms * MILLISECOND),
        inter_token_ns=round(inter_ms * MILLISECOND),
    )
    return TokenSequence(
        list(text.encode()),
        parameters,
        priority=priority,
        arrived=arrived,
        deadline=deadline,
        end_tokens=frozenset((END,)) if ends else frozenset(),
        job=text,
    )


class Driver:
    """A scheduler and a model, without threads or a clock."""

    def __init__(
        self, limits: GenerationLimits = LIMITS, rules: SchedulerRules | None = None, *, launches_ahead: bool = False
    ) -> None:
        self.limits = limits
        self.scheduler = StepScheduler(limits, rules)
        self.model = ToyModel(limits, end_every=9 if launches_ahead else 0, launches_ahead=launches_ahead)
        self.in_flight: deque[Step] = deque()
        self.now = 0
        self.ended: list[TokenSequence] = []

    def admit(self, sequence: TokenSequence) -> TokenSequence:
        self.scheduler.admit(sequence, self.now)
        return sequence

    def step(self) -> Step:
        step = self.scheduler.schedule(self.now)
        if step.rows:
            self.model.launch(step.rows)
            self.in_flight.append(step)
        if len(self.in_flight) > self.model.launches_ahead or (self.in_flight and not step.rows):
            chosen = self.model.collect()
            self.now += STEP_NS
            outputs = self.scheduler.completed(self.in_flight.popleft(), chosen, self.now, STEP_NS)
            self.ended += [output.sequence for output in outputs if output.finish_reason is not None]
        return step

    def finish(self, most: int = 2000) -> None:
        for _ in range(most):
            was_in_flight = bool(self.in_flight)
            # What comes of a step in flight may let another one start.
            if not self.step().rows and not was_in_flight:
                return
        raise AssertionError(f"{len(list(self.scheduler.sequences()))} sequences do not end")


def text_of(sequence: TokenSequence) -> str:
    return bytes(token for token in sequence.tokens[sequence.prompt_tokens :] if token != END).decode()


def is_right(sequence: TokenSequence, limits: GenerationLimits) -> bool:
    end_every = 9 if sequence.end_tokens else 0
    return text_of(sequence) == answer_of(str(sequence.job), sequence.parameters, end_every, limits)


def test_prompts_are_computed_in_chunks_beside_sequences_that_decode() -> None:
    driver = Driver()
    driver.admit(sequence_of("ab", 20))
    driver.step()
    driver.admit(sequence_of("x" * 40, 3))
    steps = [driver.step() for _ in range(4)]
    assert [(step.decode_rows, step.prefill) for step in steps] == [(1, 16), (1, 16), (1, 8), (2, 0)]
    driver.finish()
    assert all(is_right(sequence, LIMITS) for sequence in driver.ended)
    assert driver.scheduler.pool.in_use == 0


def test_a_known_prefix_is_not_computed_again() -> None:
    driver = Driver()
    first = driver.admit(sequence_of("the same beginning, one", 2))
    driver.finish()
    second = driver.admit(sequence_of("the same beginning, two", 2))
    step = driver.step()
    assert (second.reused, step.prefill) == (20, 3)
    driver.finish()
    assert driver.scheduler.reused_tokens == 20
    assert is_right(first, LIMITS)
    assert is_right(second, LIMITS)


def test_the_order_is_priority_then_deadline_then_arrival() -> None:
    driver = Driver(GenerationLimits(context_tokens=64, block_tokens=4, blocks=64, rows=8, prefill_tokens=4))
    plain = driver.admit(sequence_of("aaaa", 1))
    urgent = driver.admit(sequence_of("bbbb", 1, first_ms=50))
    more_urgent = driver.admit(sequence_of("cccc", 1, first_ms=40))
    low = driver.admit(sequence_of("dddd", 1, priority=2, first_ms=20))
    driver.finish()
    assert driver.ended == [more_urgent, urgent, plain, low]


def test_the_lowest_and_latest_is_preempted_and_still_right() -> None:
    driver = Driver(TINY)
    sequences = [driver.admit(sequence_of("abcd", 12, priority=priority)) for priority in (2, 1, 2)]
    driver.finish()
    assert driver.scheduler.preemptions
    assert sequences[1].preemptions == 0
    assert sequences[2].preemptions >= sequences[0].preemptions
    assert all(is_right(sequence, TINY) for sequence in sequences)


def test_a_higher_priority_takes_the_row_of_a_lower() -> None:
    driver = Driver(TINY)
    low = [driver.admit(sequence_of(text, 10, priority=3)) for text in ("ab", "cd", "ef")]
    driver.step()
    driver.step()
    high = driver.admit(sequence_of("gh", 2, priority=1))
    equal = driver.admit(sequence_of("ij", 2, priority=3))
    step = driver.step()
    assert high in step.sequences
    assert [each.preemptions for each in low] == [0, 0, 1]
    assert not equal.is_running
    driver.finish()
    assert all(is_right(sequence, TINY) for sequence in (*low, high, equal))


def test_a_paused_sequence_is_not_computed_and_gives_its_blocks() -> None:
    driver = Driver(TINY)
    paused = driver.admit(sequence_of("ab" * 6, 8))
    for _ in range(4):
        driver.step()
    driver.scheduler.pause(paused)
    assert not driver.step().rows
    other = driver.admit(sequence_of("cd" * 10, 3))
    driver.finish()
    assert driver.ended == [other]
    assert paused.preemptions == 1
    driver.scheduler.resume(paused)
    driver.finish()
    assert is_right(paused, TINY)


def test_resuming_more_than_there_are_rows() -> None:
    driver = Driver(TINY)
    first = [driver.admit(sequence_of(text, 8)) for text in ("a", "b", "c")]
    driver.step()
    for sequence in first:
        driver.scheduler.pause(sequence)
    others = [driver.admit(sequence_of(text, 8)) for text in ("d", "e", "f")]
    driver.step()
    for sequence in first:
        driver.scheduler.resume(sequence)
    driver.finish()
    assert all(is_right(sequence, TINY) for sequence in (*first, *others))


def test_what_can_never_fit_is_rejected_with_figures() -> None:
    driver = Driver(TINY)
    with pytest.raises(InvalidArgument, match="24 tokens: expected fewer than the model's context of 24"):
        driver.admit(sequence_of("x" * 24))
    narrow = Driver(GenerationLimits(context_tokens=99, block_tokens=2, blocks=3, rows=2, prefill_tokens=8))
    with pytest.raises(InvalidArgument, match=r"7 tokens: expected at most 6, which the cache holds \(3 blocks of 2"):
        narrow.admit(sequence_of("x" * 7))
    # It fits, and its answer ends where the cache does.
    full = narrow.admit(sequence_of("x" * 6, 50))
    narrow.finish()
    assert full.generated == 1


def test_the_queue_is_bounded() -> None:
    driver = Driver(TINY, SchedulerRules(max_waiting=2))
    driver.admit(sequence_of())
    driver.admit(sequence_of())
    with pytest.raises(QueueFull, match="2 sequences wait"):
        driver.admit(sequence_of())


def known(driver: Driver, **parts: float) -> None:
    """Steps whose cautious estimates are these milliseconds, less a hair."""
    scale = 0.9999 * MILLISECOND / StepCosts(fixed=1e9).estimate(0, 0, 0) * 1e9
    costs = StepCosts(**{name: value * scale for name, value in parts.items()})
    driver.scheduler.times = FixedTimes(driver.limits, costs.without_margins())


def test_a_first_token_that_would_come_late_is_refused_at_once() -> None:
    driver = Driver()
    known(driver, fixed=1, prefill=1)
    driver.admit(sequence_of("w" * 32))
    driver.admit(sequence_of("x" * 32, first_ms=40))
    # It is behind the second, whose deadline is earlier, and before the first, which has none.
    # Three steps of sixteen tokens: 17 ms each.
    with pytest.raises(
        DeadlineExceeded, match=r"would come 1\.0 ms after its deadline: expected in 51\.0 ms"
    ) as raised:
        driver.admit(sequence_of("y" * 16, first_ms=50))
    assert raised.value.unprocessed
    driver.admit(sequence_of("y" * 16, first_ms=51))
    # A higher priority need not wait for the others.
    driver.admit(sequence_of("z" * 16, first_ms=17, priority=0))


def test_a_prefix_that_is_known_helps_at_admission() -> None:
    driver = Driver()
    driver.admit(sequence_of("the same long beginning, 1", 1))
    driver.finish()
    known(driver, fixed=1, prefill=1)
    driver.admit(sequence_of("the same long beginning, 2", 1, arrived=driver.now, first_ms=5))
    with pytest.raises(DeadlineExceeded):
        driver.admit(sequence_of("another long beginning, 22", 1, arrived=driver.now, first_ms=5))


def test_load_that_would_break_deadlines_between_tokens_is_refused() -> None:
    driver = Driver()
    known(driver, fixed=1, row=1)
    driver.admit(sequence_of("a", 9, inter_ms=3))
    driver.admit(sequence_of("b", 9))
    with pytest.raises(DeadlineExceeded, match=r"4\.0 ms, 1\.0 ms more than another sequence's deadline") as raised:
        driver.admit(sequence_of("c", 9))
    assert "of 3.0 ms" in str(raised.value)
    with pytest.raises(DeadlineExceeded, match="its own deadline"):
        driver.admit(sequence_of("c", 9, inter_ms=1))


def test_chunks_keep_the_tightest_deadline_between_tokens() -> None:
    driver = Driver()
    driver.admit(sequence_of("a", 30, inter_ms=10))
    driver.step()
    known(driver, fixed=1, prefill=1)
    driver.admit(sequence_of("x" * 40, 1))
    assert (driver.step().prefill, driver.step().prefill) == (9, 9)
    driver.now += 5 * MILLISECOND
    assert driver.step().prefill == 4
    # It is lost already: the prompt goes on with a block.
    driver.now += 50 * MILLISECOND
    assert driver.step().prefill == LIMITS.block_tokens
    whole = Driver(rules=SchedulerRules(chunks_prompts=False))
    whole.admit(sequence_of("a", 30, inter_ms=10))
    whole.step()
    known(whole, fixed=1, prefill=1)
    whole.admit(sequence_of("x" * 40, 1))
    assert whole.step().prefill == 16


def test_late_ones_are_taken_out() -> None:
    driver = Driver()
    late = driver.admit(sequence_of("ab", first_ms=5))
    overdue = driver.admit(sequence_of("cd", 50, deadline=20 * MILLISECOND))
    fine = driver.admit(sequence_of("ef", 50))
    assert driver.scheduler.remove_late(6 * MILLISECOND) == [late]
    driver.step()
    assert driver.scheduler.remove_late(20 * MILLISECOND) == []
    assert driver.scheduler.remove_late(21 * MILLISECOND) == [overdue]
    assert list(driver.scheduler.sequences()) == [fine]


@pytest.mark.parametrize(("batching", "most"), [("static", 3), ("single", 1)])
def test_batches_that_do_not_change(batching: Batching, most: int) -> None:
    driver = Driver(TINY, SchedulerRules(batching=batching))
    sequences = [driver.admit(sequence_of(text, tokens)) for text, tokens in (("a", 2), ("b", 6), ("c", 4), ("d", 3))]
    together = []
    while (step := driver.step()).rows:
        together.append({each.number for each in step.sequences})
    assert max(map(len, together)) == most
    assert not any({1, 4} <= numbers or {2, 4} <= numbers for numbers in together)
    assert all(is_right(sequence, TINY) for sequence in sequences)


class Traffic(RuleBasedStateMachine):
    """Arrivals, cancellations, pauses and steps in any order, in a cache that is too small, one or two in flight."""

    @initialize(
        batching=st.sampled_from(["continuous", "continuous", "static", "single"]),
        reuse=st.booleans(),
        launches_ahead=st.booleans(),
    )
    def start(self, batching: Batching, reuse: bool, launches_ahead: bool) -> None:
        rules = SchedulerRules(max_waiting=8, batching=batching, reuses_prefixes=reuse)
        self.launches_ahead = launches_ahead
        self.driver = Driver(TINY, rules, launches_ahead=launches_ahead)
        self.scheduler = self.driver.scheduler
        self.admitted: list[TokenSequence] = []
        self.cancelled: list[TokenSequence] = []

    @rule(
        text=st.text("ab", min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        priority=st.integers(1, 3),
        inter_ms=st.sampled_from([0, 0, 0, 1.5, 4]),
    )
    def arrive(self, text: str, max_tokens: int, priority: int, inter_ms: float) -> None:
        sequence = sequence_of(
            text,
            max_tokens,
            priority=priority,
            arrived=self.driver.now,
            inter_ms=inter_ms,
            ends=self.launches_ahead,
        )
        try:
            self.driver.admit(sequence)
        except (QueueFull, DeadlineExceeded):
            return
        self.admitted.append(sequence)

    @precondition(lambda self: list(self.scheduler.sequences()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(list(self.scheduler.sequences())))
        in_use = self.scheduler.pool.in_use
        own = len(sequence.table.blocks)
        self.scheduler.remove(sequence)
        self.cancelled.append(sequence)
        assert in_use - own <= self.scheduler.pool.in_use <= in_use
        assert not sequence.table.blocks

    @precondition(lambda self: list(self.scheduler.sequences()))
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(list(self.scheduler.sequences())))
        (self.scheduler.resume if sequence.is_paused else self.scheduler.pause)(sequence)

    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        before = {each: each.preemptions for each in self.scheduler.sequences()}
        decoding = {each for each in self.scheduler.running if each.is_decoding and not each.is_paused}
        last = {each for each in decoding if each.pending and each.computed + 1 >= each.limit}
        step = self.driver.step()
        computed = set(step.sequences)
        assert len(computed) == len(step.rows) <= TINY.rows
        assert step.prefill <= TINY.prefill_tokens
        preempted = {each for each, count in before.items() if each.preemptions > count}
        # Who decodes is in the step, unless it was preempted, or its last token is in flight; and none was for a lower
        # priority.
        assert decoding - computed <= preempted | last
        for victim in preempted:
            if not victim.is_paused:
                assert all(each.priority <= victim.priority for each in computed)
        assert not any(each.is_paused for each in computed)
        if not step.rows and not self.driver.in_flight and not last:
            waiting = [each for each in self.scheduler.sequences() if not each.is_paused]
            # Those that were preempted with a token in flight, which is there now.
            assert self.launches_ahead or not waiting

    @invariant()
    def accounting_is_exact(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.pool
        held = {block for each in self.scheduler.running for block in each.table.blocks}
        assert pool.in_use == len(held)
        assert pool.free + pool.in_use == pool.total
        assert not any(each.table.blocks for each in self.scheduler.waiting)
        assert sum(not each.is_paused for each in self.scheduler.running) <= TINY.rows

    @invariant()
    def the_load_that_arrivals_changed_is_the_load(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        kept = self.scheduler._load
        if kept is not None:
            assert kept == self.scheduler.load(0)
        assert self.scheduler.waiting == sorted(self.scheduler.waiting, key=lambda each: each.order)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for sequence in list(self.scheduler.sequences()):
            if sequence.is_paused:
                self.scheduler.resume(sequence)
        self.driver.finish()
        assert set(self.driver.ended) == set(self.admitted) - set(self.cancelled)
        assert all(is_right(sequence, TINY) for sequence in self.driver.ended)
        assert self.scheduler.pool.in_use == 0


TestTraffic = Traffic.TestCase


def test_sequences_that_go_on_never_have_more_rows_than_there_are() -> None:
    driver = Driver(GenerationLimits(context_tokens=24, block_tokens=2, blocks=60, rows=3, prefill_tokens=24))
    scheduler = driver.scheduler
    a, b, c = (driver.admit(sequence_of(name, 15)) for name in "abc")
    driver.step()
    scheduler.pause(a)
    driver.admit(sequence_of("d", 15))
    driver.step()
    scheduler.pause(b)
    e = driver.admit(sequence_of("e", 15))
    driver.step()
    scheduler.pause(e)
    scheduler.resume(b)
    assert len(driver.step().rows) <= 3
    scheduler.resume(a)
    assert len(driver.step().rows) <= 3
    scheduler.resume(e)
    assert c in driver.ended or len(driver.step().rows) <= 3
    driver.finish()
    assert len(driver.ended) == 5


def test_a_sequence_that_ended_after_it_was_preempted_does_not_come_back() -> None:
    """Its last token is known to be its last, by a stop string, only when the next step is under way."""
    driver = Driver(TINY)
    first = driver.admit(sequence_of("a", 15))
    driver.step()
    driver.scheduler._preempt(first)
    assert first in driver.scheduler.waiting
    driver.scheduler.ended(first)
    assert not list(driver.scheduler.sequences())
    assert not driver.step().rows


def test_what_a_failed_row_has_computed_is_not_found_again_though_it_was_preempted() -> None:
    driver = Driver()
    first = sequence_of("the same long beginning", 20)
    driver.admit(first)
    driver.step()
    step = driver.scheduler.schedule(driver.now)
    assert step.sequences == [first]
    assert first.table.find_prefix(first.tokens)
    driver.scheduler._preempt(first)
    failed = [FailedRow("not a number") for _ in step.rows]
    (output,) = driver.scheduler.completed(step, failed, driver.now, MILLISECOND)
    assert isinstance(output.chosen, FailedRow)
    assert not first.table.find_prefix(first.tokens)
    # Its blocks can be taken for something else.
    pool = driver.scheduler.pool
    assert (pool.free, pool.in_use) == (pool.total, 0)
    assert len({pool.allocate() for _ in range(pool.total)} - {None}) == pool.total
