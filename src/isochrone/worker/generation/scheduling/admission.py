"""Whether a request can keep its deadlines beside those that are there already, and by how much it would not.

``EngineLoad`` is a picture of an engine between two steps. The engine makes it for the loop's thread, which refuses
requests before they cost anything; the scheduler makes it once more when the tokens of the prompt are known. Pure.

Between tokens, a request competes with its own priority and higher ones only. It must keep its own deadline and must
not break theirs, in steps with all of them; lower ones are left out of a step where they would break it, so they count
neither as rows nor by their deadlines. A stream whose client does not read counts as a row, since it may go on at any
time, but nobody waits for its tokens: its deadline does not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded, InvalidArgument, IsochroneError, QueueFull
from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.scheduling.sequence import Key, turn_deadline
from isochrone.worker.generation.scheduling.step_times import StepCosts

#: As a sequence's number in the order: behind all that are there.
_LAST = NEVER


@dataclass(frozen=True, slots=True)
class Candidate:
    """What admission needs to know of a request."""

    prompt_tokens: int
    priority: int
    #: When it arrived, and when its first token is due; NEVER: at any time.
    arrived: int
    first_deadline: int
    #: 0: no deadline.
    inter_token_ns: int = 0
    #: When its prompt will have become tokens; 0: it has.
    ready: int = 0

    @property
    def order(self) -> Key:
        return (self.priority, True, turn_deadline(self.first_deadline, self.arrived), _LAST)


class Level(NamedTuple):
    """The sequences of one priority, in whatever state."""

    priority: int
    sequences: int
    #: Their tokens, computed or not.
    tokens: int
    #: The shortest time between tokens that one asks for whose client reads; 0: none does.
    tightest_ns: int


def levels_of(members: Iterable[tuple[int, int, int]]) -> tuple[Level, ...]:
    """From the priority, the tokens and the deadline between tokens (0: none) of each sequence."""
    found: dict[int, list[int]] = {}
    for priority, tokens, asked_ns in members:
        known = found.get(priority)
        if known is None:
            found[priority] = [1, tokens, asked_ns]
        else:
            known[0] += 1
            known[1] += tokens
            if asked_ns and (asked_ns < known[2] or not known[2]):
                known[2] = asked_ns
    return tuple(Level(priority, *found[priority]) for priority in sorted(found))


def _tighter(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The sequences of an engine at one instant."""

    limits: GenerationLimits
    costs: StepCosts
    #: The expected end of the step that runs; 0: none does.
    step_end: int = 0
    #: Sequences that hold blocks and are not paused, and of them those that decode.
    running: int = 0
    decoding: int = 0
    #: Priorities of those that run, sorted.
    running_priorities: tuple[int, ...] = ()
    #: Expected tokens until each of those that run ends, sorted.
    to_end: tuple[int, ...] = ()
    waiting: int = 0
    #: Tokens in the blocks of those that run.
    context: int = 0
    #: (order, tokens left) of each prompt that is not computed yet, sorted.
    prompts: tuple[tuple[Key, int], ...] = ()
    #: All sequences, by priority: highest first.
    levels: tuple[Level, ...] = ()
    blocks_in_use: int = 0

    def with_arrivals(self, arrivals: Iterable[tuple[Key, int, int]]) -> EngineLoad:
        """With sequences that the engine does not know yet: their order, tokens and deadlines between tokens."""
        arrivals = list(arrivals)
        levels = {level.priority: level for level in self.levels}
        for level in levels_of((order[0], tokens, asked_ns) for order, tokens, asked_ns in arrivals):
            known = levels.get(level.priority)
            if known is not None:
                level = Level(
                    level.priority,
                    known.sequences + level.sequences,
                    known.tokens + level.tokens,
                    _tighter(known.tightest_ns, level.tightest_ns),
                )
            levels[level.priority] = level
        return replace(
            self,
            waiting=self.waiting + len(arrivals),
            prompts=_merged(self.prompts, [(order, tokens) for order, tokens, _ in arrivals]),
            levels=tuple(levels[priority] for priority in sorted(levels)),
        )

    def as_admitted(self) -> EngineLoad:
        """Without margins where nothing is computed: nobody could be made late but the next one itself, and only steps
        can show that they are as fast again as they were."""
        if self.running or self.prompts:
            return self
        return replace(self, costs=self.costs.without_margins())

    def tightest_ns(self, priority: int) -> int:
        """The shortest deadline between tokens that a request of a priority must not break; 0: there is none."""
        asked = [level.tightest_ns for level in self.levels if level.tightest_ns and level.priority <= priority]
        return min(asked, default=0)

    def first_token_at(self, candidate: Candidate, now: int) -> int:
        """The instant of its first token, cautiously; ``now``: nothing is known about the times of steps."""
        costs = self.costs
        begins, steps, last = self._until_first_token(candidate, now)
        # The last step may be slow.
        return begins + round(costs.waiting * steps + costs.estimate(*last) + costs.delivery)

    def expected_first_token(self, candidate: Candidate, now: int) -> int:
        """The same, as the device is expected to give it."""
        begins, steps, last = self._until_first_token(candidate, now)
        return begins + round(steps + self.costs.expected(*last))

    def _until_first_token(self, candidate: Candidate, now: int) -> tuple[int, float, tuple[int, int, int]]:
        """When the steps begin, what they are expected to take but for the last, and the rows, context and tokens of
        prompts of that one."""
        costs, limits = self.costs, self.limits
        if not costs.is_known:
            return max(now, candidate.ready), 0.0, (0, 0, 0)
        ahead = bisect_left(self.prompts, (candidate.order, 0))
        tokens_ahead = sum(left for _, left in self.prompts[:ahead])
        # Those ahead decode when its turn comes: steps take longer, and chunks are smaller.
        rows = min(limits.rows - 1, self.decoding + ahead)
        context = self.context + tokens_ahead
        # Lower priorities give it their rows.
        lower = self.running - bisect_left(self.running_priorities, candidate.priority + 1)
        behind_running = ahead + 1 - (limits.rows - self.running + lower)
        steps = 0.0
        if behind_running > 0 and self.to_end:
            # With more ahead than there are rows, rows are taken several times; those that wait now are taken to be as
            # long as the longest that runs.
            turns, place = divmod(behind_running - 1, len(self.to_end))
            steps = (turns * self.to_end[-1] + self.to_end[place]) * costs.expected(rows, context, 0)
        chunk = self._chunk(rows, context, candidate.priority)
        whole, rest = divmod(candidate.prompt_tokens + tokens_ahead, chunk)
        if not rest:
            whole, rest = whole - 1, chunk
        steps += whole * costs.expected(rows, context + chunk, chunk)
        return max(now, self.step_end, candidate.ready), steps, (rows, context + rest, rest)

    def _chunk(self, rows: int, context: int, priority: int) -> int:
        """Tokens of prompts that a step can compute without breaking a deadline between tokens; at least one block."""
        limits, tightest = self.limits, self.tightest_ns(priority)
        if not tightest or not rows:
            return limits.prefill_tokens
        within = self.costs.prefill_within(tightest, rows, context, limits.prefill_tokens)
        return max(within, min(limits.block_tokens, limits.prefill_tokens))

    def inter_token_ns(self, candidate: Candidate) -> int:
        """The predicted time between tokens once it and all of its priority or higher ones decode, beside the smallest
        chunk."""
        limits = self.limits
        beside = [level for level in self.levels if level.priority <= candidate.priority]
        rows = min(limits.rows, sum(level.sequences for level in beside) + 1)
        context = sum(level.tokens for level in beside) + candidate.prompt_tokens
        # Without room for a chunk, the next prompt would wait until a sequence ends.
        return self.costs.between_tokens(rows, context, min(limits.block_tokens, limits.prefill_tokens))


def _merged(prompts: tuple[tuple[Key, int], ...], more: list[tuple[Key, int]]) -> tuple[tuple[Key, int], ...]:
    if len(more) == 1:
        at = bisect_left(prompts, more[0])
        return (*prompts[:at], more[0], *prompts[at:])
    return tuple(sorted([*prompts, *more]))


def refusal(load: EngineLoad, candidate: Candidate, now: int, max_waiting: int) -> IsochroneError | None:
    """Why a request is refused at once; None: it is not."""
    error = misfit(load.limits, candidate.prompt_tokens)
    if error is not None:
        return error
    load = load.as_admitted()
    if load.waiting >= max_waiting:
        return QueueFull(f"{load.waiting} sequences wait, the most that max_waiting allows").not_begun()
    if candidate.first_deadline != NEVER:
        at = load.first_token_at(candidate, now)
        if at > candidate.first_deadline:
            return DeadlineExceeded(
                f"the first token would come {_ms(at - candidate.first_deadline)} ms after its deadline: expected in "
                f"{_ms(at - now)} ms, due in {_ms(candidate.first_deadline - now)} ms; {load.running} sequences run, "
                f"{load.waiting} wait"
            ).not_begun()
    tightest = _tighter(load.tightest_ns(candidate.priority), candidate.inter_token_ns)
    if tightest:
        between = load.inter_token_ns(candidate)
        if between > tightest:
            whose = "its own" if tightest == candidate.inter_token_ns else "another sequence's"
            return DeadlineExceeded(
                f"with this request a token could take {_ms(between)} ms, {_ms(between - tightest)} ms more than "
                f"{whose} deadline between tokens of {_ms(tightest)} ms; {load.running} sequences run, "
                f"{load.waiting} wait"
            ).not_begun()
    return None


def misfit(limits: GenerationLimits, prompt_tokens: int) -> InvalidArgument | None:
    """The error of a prompt that could never be computed."""
    if prompt_tokens >= limits.context_tokens:
        return InvalidArgument(
            f"the prompt has {prompt_tokens} tokens: expected fewer than the model's context of "
            f"{limits.context_tokens} tokens, prompt and answer together"
        )
    room = limits.blocks * limits.block_tokens
    if prompt_tokens > room:
        return InvalidArgument(
            f"the prompt has {prompt_tokens} tokens: expected at most {room}, which the cache holds "
            f"({limits.blocks} blocks of {limits.block_tokens} tokens)"
        )
    return None


def _ms(ns: int) -> str:
    return f"{ns / MILLISECOND:.1f}"
