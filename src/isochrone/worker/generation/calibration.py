"""First measurements of a model's steps, before requests come: admission knows times from the first request on."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.clock import SECOND, now_ns
from isochrone.worker.backends.generative import GenerativeExecutable, Row, Sampling
from isochrone.worker.generation.scheduling.step_times import StepTimes

#: After this time no further step is measured.
_BUDGET_NS = 2 * SECOND
_ROUNDS = 2
_TOKEN = 0
_GREEDY = Sampling(temperature=0.0)


def calibrate(executable: GenerativeExecutable, times: StepTimes) -> None:
    """Runs prompts of several lengths, rows that decode behind a short and a long context, and both together."""
    limits = executable.limits
    size = limits.block_tokens
    started = now_ns()
    longest = min(limits.prefill_tokens, limits.context_tokens - 1, limits.blocks * size)
    for _ in range(_ROUNDS):
        # A prompt of one token may be computed as if it decoded.
        least = min(2, longest)
        for count in sorted({least, max(least, longest // 8), max(least, longest // 2), longest}):
            _measure(executable, times, [_row(count, 0, range(-(-count // size)))], 0, count)
            if now_ns() - started > _BUDGET_NS:
                return
        # The prompt above has filled these blocks: rows may share them, each with a last block of its own.
        shared = range(min(longest // size, max(0, limits.context_tokens // size - 1), max(0, limits.blocks - 1)))
        own = range(len(shared), limits.blocks)
        most = min(limits.rows, len(own))
        for rows in sorted({1, max(1, most // 2), most}):
            for context in (range(0), shared):
                parts = [_row(1, len(context) * size, (*context, own[index])) for index in range(rows)]
                _measure(executable, times, parts, rows, 0)
                if now_ns() - started > _BUDGET_NS:
                    return
        if most > 1 and least > 1:
            # The last row's own block takes the prompt.
            parts[-1] = _row(min(size, longest), 0, (own[most - 1],))
            _measure(executable, times, parts, most - 1, len(parts[-1].tokens))


def _row(count: int, start: int, blocks: Sequence[int]) -> Row:
    return Row([_TOKEN] * count, start, tuple(blocks), _GREEDY)


def _measure(executable: GenerativeExecutable, times: StepTimes, rows: list[Row], decode: int, prefill: int) -> None:
    began = now_ns()
    executable.launch(rows)
    executable.collect()
    context = sum(row.start + len(row.tokens) for row in rows)
    times.observe(decode, context, prefill, now_ns() - began)
