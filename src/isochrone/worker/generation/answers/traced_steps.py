"""The steps that computed one traced request: bounded, however long its answer is.

The engine's thread adds to it; the loop reads it when the request is over.
"""

from __future__ import annotations

from typing import Final

#: Steps with an entry of their own; further ones share the last.
MOST_STEPS: Final = 64

#: Begin, end (monotonic ns), tokens of the request, whether they are of its prompt, sequences of the step, steps.
StepTimes = tuple[int, int, int, bool, int, int]


class TracedSteps:
    """The steps of one request, in order."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[StepTimes] = []

    def add(self, began: int, ended: int, tokens: int, is_prompt: bool, rows: int) -> None:
        entries = self.entries
        if len(entries) < MOST_STEPS:
            entries.append((began, ended, tokens, is_prompt, rows, 1))
            return
        first, _, before, was_prompt, most, steps = entries[-1]
        entries[-1] = (first, ended, before + tokens, was_prompt, max(most, rows), steps + 1)
