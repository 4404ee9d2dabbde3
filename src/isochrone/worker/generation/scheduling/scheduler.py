"""What the next step computes: continuous batching under deadlines.

Every sequence that decodes is in every step, so its tokens never wait for a prompt; what is left of the step goes to
prompts, in chunks that keep the tightest deadline between tokens of their priority and higher ones. Where such a
deadline could not be kept otherwise, sequences of lower priorities are left out of the step. Prompts go by priority,
then by the deadline of the first token, then by arrival. A sequence that needs a block when none is free takes those of
a lower or later one, which is computed again later. The most senior sequence is never preempted, so something always
ends. Pure: no clock, no threads, no device.

A step may be scheduled while the one before is in flight: a sequence of that one goes on with the token that it will
have. Should that token end it, what was computed for it in vain is dropped.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Literal

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded
from isochrone.worker.backends.generative import FailedRow, GenerationLimits, Result, Row
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad, levels_of, refusal
from isochrone.worker.generation.scheduling.blocks import BlockPool
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.step_times import StepTimes
from isochrone.worker.generation.scheduling.steps import Output, Step, chunk_of, step_of, token_of
from isochrone.worker.generation.scheduling.token_deadlines import prefill_room, rows_kept

#: ``continuous``, or for comparison: a batch that ends before the next one starts, or one sequence after the other.
Batching = Literal["continuous", "static", "single"]
_order = attrgetter("order")
#: Between two steps, at most this many refused prompts are looked up in the prefix cache: a look-up takes microseconds
#: for each block, and delays the next step.
_LOOKS = 4
#: Weight of a sequence that has ended in the mean share of ``max_tokens`` that sequences use.
_NEW = 0.05


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """The options of a scheduler."""

    max_waiting: int = 256
    batching: Batching = "continuous"
    #: False: chunks are as large as the model allows, whatever that does to deadlines between tokens.
    chunks_prompts: bool = True
    reuses_prefixes: bool = True


class StepScheduler:
    """The sequences of one instance."""

    def __init__(self, limits: GenerationLimits, rules: SchedulerRules | None = None) -> None:
        self.limits = limits
        self.rules = rules or SchedulerRules()
        self.pool = BlockPool(limits.blocks, limits.block_tokens, reuses_prefixes=self.rules.reuses_prefixes)
        self.times = StepTimes(limits)
        #: Sequences that hold blocks, by seniority, and those that hold none, in their order.
        self.running: list[TokenSequence] = []
        self.waiting: list[TokenSequence] = []
        #: The load, as long as only arrivals have changed it: many may come between two steps.
        self._load: EngineLoad | None = None
        self.preemptions = 0
        self.reused_tokens = 0
        self._numbers = 0
        self._used_share = 1.0
        #: No sequence is due before; some may be due later than it says.
        self._earliest_due = NEVER
        #: Refused prompts that may be looked up before the next step.
        self._looks_left = _LOOKS
        #: Numbers of the sequences that may start, where batches do not change.
        self._batch: set[int] = set()

    # Arrivals and ends.

    def admit(self, sequence: TokenSequence, now: int, step_end: int = 0) -> None:
        """Takes a sequence, or raises: it does not fit, or could not keep its deadlines.

        ``step_end``: when the steps in flight are expected to end; 0: there are none.
        """
        self._numbers += 1
        # The keys and values of the last token are never needed.
        room = self.pool.total * self.pool.block_tokens + 1
        sequence.give_blocks(self.pool, self._numbers, min(self.limits.context_tokens, room))
        load = self._load
        if load is None:
            load = self._load = self.load(step_end)
        tokens, most = sequence.prompt_tokens, self.rules.max_waiting
        error = refusal(load, self._candidate(sequence, tokens), now, most)
        if isinstance(error, DeadlineExceeded) and self._looks_left:
            self._looks_left -= 1
            # What is known of the prompt need not be computed. It takes time to find out, so only if it matters.
            tokens -= len(sequence.table.find_prefix(sequence.tokens)) * self.limits.block_tokens
            error = refusal(load, self._candidate(sequence, tokens), now, most)
        if error is not None:
            raise error
        if sequence.first_deadline != NEVER:
            sequence.admitted_at = now
            sequence.predicted_wait = load.expected_first_token(self._candidate(sequence, tokens), now) - now
        self._wait(sequence)
        arrival = (sequence.order, sequence.left, sequence.parameters.inter_token_ns)
        self._load = load.with_arrivals([arrival])
        self._earliest_due = min(self._earliest_due, sequence.due)

    def _wait(self, sequence: TokenSequence) -> None:
        place = bisect_right(self.waiting, sequence.order, key=_order)
        self.waiting.insert(place, sequence)
        for overtaken in self.waiting[place + 1 :]:
            # It waits longer than was predicted, and says nothing about predictions.
            overtaken.predicted_wait = 0
        self._load = None

    @staticmethod
    def _candidate(sequence: TokenSequence, tokens: int) -> Candidate:
        return Candidate(
            tokens, sequence.priority, sequence.arrived, sequence.first_deadline, sequence.parameters.inter_token_ns
        )

    def remove(self, sequence: TokenSequence) -> None:
        """Ends a sequence, whatever its state; its blocks are free at once, also for steps behind those in flight."""
        self._load = None
        sequence.is_ended = True
        if sequence.is_running:
            self.running.remove(sequence)
            sequence.is_running = False
            sequence.table.release()
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def remove_late(self, now: int) -> list[TokenSequence]:
        """Takes out the sequences whose first token, or whose end, was due before now."""
        if now <= self._earliest_due:
            return []
        # A first token that is in flight is not late yet.
        late = [each for each in self.sequences() if each.due < now and (each.first_at or not each.pending)]
        for sequence in late:
            if not sequence.first_at:
                self.times.observe_wait(sequence.predicted_wait, now - sequence.admitted_at)
            self.remove(sequence)
        self._earliest_due = min([each.due for each in self.sequences()], default=NEVER)
        return late

    def sequences(self) -> Iterator[TokenSequence]:
        yield from self.running
        yield from self.waiting

    def pause(self, sequence: TokenSequence) -> None:
        """Nothing more is computed for a sequence. It keeps its blocks until others need them."""
        sequence.is_paused = True
        self._load = None

    def resume(self, sequence: TokenSequence) -> None:
        sequence.is_paused = False
        self._load = None
        if self._active > self.limits.rows:
            # Another one has its row.
            self._preempt(next(each for each in reversed(self.running) if not each.is_paused))

    @property
    def _active(self) -> int:
        """Sequences that hold blocks and are computed: each has a row in the steps."""
        return sum(not each.is_paused for each in self.running)

    # Steps.

    def schedule(self, now: int) -> Step:
        """Chooses the next step. Empty only if every sequence is paused, or there is none."""
        self._load = None
        self._looks_left = _LOOKS
        if self.rules.batching != "continuous" and not self._active:
            self._form_batch()
        sequences: list[TokenSequence] = []
        rows: list[Row] = []
        block_tokens = self.limits.block_tokens
        for sequence in self.running.copy():
            # An earlier one of this step may preempt a later one.
            if sequence.is_decoding and not sequence.is_paused and sequence.is_running:
                start = sequence.computed
                if sequence.pending and start + 1 >= sequence.limit:
                    continue  # the token in flight is its last
                if start < len(sequence.table.blocks) * block_tokens or self._make_room(sequence):
                    sequences.append(sequence)
                    rows.append(token_of(sequence))
        if sequences and sequences[0].priority != sequences[-1].priority:
            kept = rows_kept(self.times.costs, sequences, rows, now)
            del sequences[kept:], rows[kept:]
        if len(sequences) == len(self.running) and not self.waiting:
            return step_of(sequences, rows, len(rows))
        return self._with_prompts(sequences, rows, now)

    def _with_prompts(self, sequences: list[TokenSequence], rows: list[Row], now: int) -> Step:
        """A step of rows that decode, and of as much of the prompts as may be."""
        prompts: list[TokenSequence] = []
        chunks: list[Row] = []
        budget, used, priority = 0, 0, -1
        is_blocked = False
        #: Those with blocks that are still to come.
        begun = {each.number for each in self._begun()}
        for sequence in self._prompts():
            begun.discard(sequence.number)
            if sequence.priority != priority:
                priority = sequence.priority
                budget = self.limits.prefill_tokens
                if self.rules.chunks_prompts:
                    budget = prefill_room(self.limits, self.times.costs, sequences, rows, priority, now)
            if budget <= used:
                break
            if not sequence.is_running:
                # Nobody overtakes one that cannot start: a long prompt would wait for ever behind short ones. One that
                # was preempted with a token in flight waits for that.
                is_blocked = is_blocked or bool(sequence.pending) or not self._start(sequence)
                if is_blocked:
                    if not begun:
                        break
                    continue
                # It may have taken the place of one that decodes.
                if not all(each.is_running for each in sequences):
                    rows = [row for row, each in zip(rows, sequences, strict=True) if each.is_running]
                    sequences = [each for each in sequences if each.is_running]
            sequence.started_at = sequence.started_at or now
            prompts.append(sequence)
            chunks.append(chunk_of(sequence, min(sequence.left, budget - used)))
            used += len(chunks[-1].tokens)
        return step_of(sequences + prompts, rows + chunks, len(rows))

    def completed(self, step: Step, chosen: Sequence[Result], now: int, took_ns: int) -> list[Output]:
        """A step has given its tokens. Sequences that end with theirs, or that got none, have left the scheduler."""
        self._load = None
        self.times.observe(step.decode_rows, step.context, step.prefill, took_ns)
        outputs: list[Output] = []
        size = self.limits.block_tokens
        for sequence, row, result in zip(step.sequences, step.rows, chosen, strict=True):
            if sequence.is_ended:
                continue
            start, table = row.start, sequence.table
            computed = start + len(row.tokens)
            # Unless it was preempted meanwhile.
            if computed // size > start // size and row.blocks is table.blocks:
                table.note_computed(sequence.tokens, computed)
            if result is None:
                continue
            sequence.pending -= 1
            if isinstance(result, FailedRow):
                # Nor may others use what its blocks hold: the cause may be in any of them. If it was preempted
                # meanwhile, they may hold something else by now, which is then computed once more.
                self.pool.forget(row.blocks)
                self.remove(sequence)
                outputs.append(Output(sequence, result, None))
                continue
            reason = sequence.add(result.token, now)
            if sequence.generated == 1:
                self.times.observe_wait(sequence.predicted_wait, now - sequence.admitted_at)
            outputs.append(Output(sequence, result, reason))
            if reason is not None:
                self.ended(sequence)
            elif not sequence.is_running:
                # Preempted meanwhile: its first token changes its order.
                self.waiting.sort(key=_order)
        return outputs

    def ended(self, sequence: TokenSequence) -> None:
        """A sequence ended by itself, unless it left before."""
        if not sequence.is_running:
            # Preempted after the step that ended it: it must not be computed again.
            self.remove(sequence)
            return
        share = sequence.generated / max(1, sequence.limit - sequence.prompt_tokens)
        self._used_share += _NEW * (share - self._used_share)
        self.remove(sequence)

    def _begun(self) -> list[TokenSequence]:
        """The sequences with blocks whose prompt is to be computed, first one first."""
        return sorted([each for each in self.running if not each.is_decoding and not each.is_paused], key=_order)

    def _prompts(self) -> Iterator[TokenSequence]:
        """The sequences whose prompt is to be computed, first one first."""
        waiting = [each for each in self.waiting if not each.is_paused]
        return merge(self._begun(), waiting, key=_order)

    def _form_batch(self) -> None:
        """The sequences that start before the next batch does, where batches do not change."""
        most = self.limits.rows if self.rules.batching == "static" else 1
        self._batch = {each.number for each in islice(self._prompts(), most)}

    # Blocks.

    def _start(self, sequence: TokenSequence) -> bool:
        """Gives a waiting sequence a row and the blocks of its prompt; False: it has to wait."""
        if self.rules.batching != "continuous" and sequence.number not in self._batch:
            return False
        prefix = sequence.table.find_prefix(sequence.tokens)
        needed = self.pool.blocks_for(len(sequence.tokens)) - self.pool.held_of(prefix)
        candidates = [each for each in reversed(self.running) if self._may_take(sequence, each)]
        candidates.sort(key=lambda each: not each.is_paused)
        victims: list[TokenSequence] = []
        active, free = self._active, self.pool.free
        # Those that decode will need blocks soon: without a few to spare, the new one would be preempted at once.
        while active >= self.limits.rows or free < needed + min(active, self.pool.total // 16):
            if len(victims) == len(candidates):
                return False
            victim = candidates[len(victims)]
            victims.append(victim)
            active -= not victim.is_paused
            free += sum(self.pool.is_held_once(block) for block in victim.table.blocks if block not in prefix)
        for victim in victims:
            self._preempt(victim)
        self.waiting.remove(sequence)
        sequence.reused = sequence.computed = sequence.table.take_prefix(sequence.tokens)
        self.reused_tokens += sequence.reused
        has_room = sequence.table.reserve(len(sequence.tokens))
        assert has_room
        sequence.is_running = True
        insort(self.running, sequence, key=lambda each: each.seniority)
        return True

    @staticmethod
    def _may_take(sequence: TokenSequence, other: TokenSequence) -> bool:
        """Whether a sequence that starts may preempt another: a lower priority, or one that computes nothing."""
        return other.is_paused or other.priority > sequence.priority

    def _make_room(self, sequence: TokenSequence) -> bool:
        """Room for the next token of a sequence that decodes; False: it was preempted itself."""
        while not sequence.table.reserve(sequence.computed + 1):
            paused = [each for each in self.running if each.is_paused]
            victim = paused[-1] if paused else self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: TokenSequence) -> None:
        self.running.remove(sequence)
        sequence.is_running = False
        sequence.table.release()
        sequence.computed = sequence.reused = 0
        sequence.is_decoding = False
        sequence.preemptions += 1
        self.preemptions += 1
        self._wait(sequence)

    # Figures.

    def load(self, step_end: int = 0) -> EngineLoad:
        active = [each for each in self.running if not each.is_paused]
        decoding = [each for each in active if each.is_decoding]
        prompts = [(each.order, each.left) for each in self.waiting if not each.is_paused]
        for each in self._begun():
            insort(prompts, (each.order, each.left))
        members = [
            (each.priority, len(each.tokens), 0 if each.is_paused else each.parameters.inter_token_ns)
            for each in self.sequences()
        ]
        to_end = sorted(max(1, round((each.limit - len(each.tokens)) * self._used_share)) for each in active)
        return EngineLoad(
            self.limits,
            self.times.costs,
            step_end,
            running=len(active),
            decoding=len(decoding),
            running_priorities=tuple(sorted(each.priority for each in active)),
            to_end=tuple(to_end),
            waiting=len(self.waiting),
            context=sum(each.computed for each in active),
            prompts=tuple(prompts),
            levels=levels_of(members),
            blocks_in_use=self.pool.in_use,
        )


def late_error(sequence: TokenSequence, now: int) -> DeadlineExceeded:
    """The error of a sequence that ``remove_late`` took out."""
    late = (now - sequence.due) / MILLISECOND
    if sequence.first_at:
        return DeadlineExceeded(f"the deadline passed {late:.1f} ms ago, after {sequence.generated} tokens")
    error = DeadlineExceeded(f"the deadline of the first token passed {late:.1f} ms ago, before it was computed")
    return error if sequence.started_at else error.not_begun()
