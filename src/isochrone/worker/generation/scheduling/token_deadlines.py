"""What a step may compute without breaking deadlines between tokens. Pure functions of the rows that decode."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.clock import NEVER
from isochrone.worker.backends.generative import GenerationLimits, Row
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.step_times import StepCosts


def rows_kept(costs: StepCosts, sequences: Sequence[TokenSequence], rows: Sequence[Row], now: int) -> int:
    """How many of the rows that decode, which are in the order of priorities, a step computes: lower ones are left out
    where that keeps a deadline of a higher one."""
    if not costs.is_known or not any(each.parameters.inter_token_ns for each in sequences):
        return len(rows)
    #: Deadlines of the rows so far; the earliest of higher priorities than the row's that these keep without it.
    dues: list[int] = []
    context, due, priority = 0, NEVER, sequences[0].priority
    for count, (sequence, row) in enumerate(zip(sequences, rows, strict=True)):
        if sequence.priority != priority:
            priority, took = sequence.priority, costs.between_tokens(count, context, 0)
            # Those that are lost without it are lost with it.
            due = min([each for each in dues if each >= took], default=NEVER)
        context += row.start + 1
        if due != NEVER and costs.between_tokens(count + 1, context, 0) > due:
            return count
        if sequence.parameters.inter_token_ns:
            dues.append(_due_in(sequence, now))
    return len(rows)


def prefill_room(
    limits: GenerationLimits,
    costs: StepCosts,
    sequences: Sequence[TokenSequence],
    rows: Sequence[Row],
    priority: int,
    now: int,
) -> int:
    """Tokens of prompts that a step with these rows that decode may compute, up to those of a priority."""
    due = [_due_in(each, now) for each in sequences if each.parameters.inter_token_ns and each.priority <= priority]
    if not due or not costs.is_known:
        return limits.prefill_tokens
    context = sum(row.start + 1 for row in rows)
    if costs.between_tokens(len(rows), context, 0) > min(due):
        # The deadline is lost with or without prompts, which go on in the smallest chunks.
        return min(limits.block_tokens, limits.prefill_tokens)
    return costs.prefill_within(min(due), len(rows), context, limits.prefill_tokens)


def _due_in(sequence: TokenSequence, now: int) -> int:
    """ns from the beginning of the next step until the token that it gives is due."""
    asked = sequence.parameters.inter_token_ns
    # Where a token is in flight, the step begins when that one is there.
    return asked if sequence.pending else sequence.last_at + asked - now
