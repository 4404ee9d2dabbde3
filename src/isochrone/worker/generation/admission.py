"""Whether a request can keep its deadlines beside those that are there already, and by how much it would not.

``EngineLoad`` is a picture of an engine between two steps. The engine makes it for the loop's thread, which refuses
requests before they cost anything; the scheduler makes it once more when the tokens of the prompt are known. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded, InvalidArgument, IsochroneError, QueueFull
from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.sequence import PATIENCE_NS, Key
from isochrone.worker.generation.step_times import StepCosts

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

    @property
    def order(self) -> Key:
        deadline = self.first_deadline if self.first_deadline != NEVER else self.arrived + PATIENCE_NS
        return (self.priority, True, deadline, _LAST)


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
    #: The shortest time between tokens that a sequence asks for; 0: none does.
    tightest_ns: int = 0
    blocks_in_use: int = 0

    def first_token_at(self, candidate: Candidate, now: int) -> int:
        """The predicted instant of its first token; ``now``: nothing is known about the times of steps."""
        costs, limits = self.costs, self.limits
        if not costs.is_known:
            return now
        at = max(now, self.step_end)
        ahead = bisect_left(self.prompts, (candidate.order, 0))
        tokens_ahead = sum(left for _, left in self.prompts[:ahead])
        # Those ahead decode when its turn comes: steps take longer, and chunks are smaller.
        rows = min(limits.rows - 1, self.decoding + ahead)
        context = self.context + tokens_ahead
        # Lower priorities give it their rows.
        lower = self.running - bisect_left(self.running_priorities, candidate.priority + 1)
        behind_running = ahead + 1 - (limits.rows - self.running + lower)
        if behind_running > 0 and self.to_end:
            # With more ahead than there are rows, rows are taken several times; those that wait now are taken to be as
            # long as the longest that runs.
            turns, place = divmod(behind_running - 1, len(self.to_end))
            at += (turns * self.to_end[-1] + self.to_end[place]) * costs.estimate(rows, context, 0)
        chunk = self._chunk(rows, context)
        whole, rest = divmod(candidate.prompt_tokens + tokens_ahead, chunk)
        at += whole * costs.estimate(rows, context + chunk, chunk)
        if rest:
            at += costs.estimate(rows, context + rest, rest)
        return at

    def _chunk(self, rows: int, context: int) -> int:
        """Tokens of prompts that a step can compute without breaking a deadline between tokens; at least one block."""
        limits = self.limits
        if not self.tightest_ns or not rows:
            return limits.prefill_tokens
        within = self.costs.prefill_within(self.tightest_ns, rows, context, limits.prefill_tokens)
        return max(within, min(limits.block_tokens, limits.prefill_tokens))

    def inter_token_ns(self, candidate: Candidate) -> int:
        """The predicted time between tokens once it and all that are there decode, beside the smallest chunk."""
        limits = self.limits
        rows = min(limits.rows, self.running + self.waiting + 1)
        context = self.context + sum(left for _, left in self.prompts) + candidate.prompt_tokens
        # Without room for a chunk, the next prompt would wait until a sequence ends.
        return self.costs.estimate(rows, context, min(limits.block_tokens, limits.prefill_tokens))


def refusal(load: EngineLoad, candidate: Candidate, now: int, max_waiting: int) -> IsochroneError | None:
    """Why a request is refused at once; None: it is not."""
    error = misfit(load.limits, candidate.prompt_tokens)
    if error is not None:
        return error
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
    asked = [ns for ns in (load.tightest_ns, candidate.inter_token_ns) if ns]
    if asked:
        tightest, between = min(asked), load.inter_token_ns(candidate)
        if between > tightest:
            whose = "its own" if tightest == candidate.inter_token_ns else "a running sequence's"
            return DeadlineExceeded(
                f"with this request a token would take {_ms(between)} ms, {_ms(between - tightest)} ms more than "
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
