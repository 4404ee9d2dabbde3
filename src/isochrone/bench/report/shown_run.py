"""A run as the report shows it: its label and colour, its figures, and its columns by slots of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.analysis.summary import Summary, is_answered, summarize
from isochrone.bench.analysis.time_blocks import slot_numbers
from isochrone.bench.results.outcomes import Run
from isochrone.clock import SECOND

#: The style has so many colours of runs.
COLOURS = 6
_MOST_SLOTS = 120


@dataclass(frozen=True, slots=True)
class ShownRun:
    """One run with its summary."""

    run: Run
    summary: Summary
    #: ``A``, ``B``, …
    label: str
    #: The class of its colour.
    colour: str

    @property
    def seconds(self) -> float:
        return max(self.run.seconds, 1e-9)

    @property
    def load(self) -> str:
        if self.run.rate is not None:
            return f"{self.run.rate:,.6g} requests/s"
        return f"{self.run.in_flight} in flight" if self.run.in_flight is not None else "no load given"

    @property
    def latency_instants(self) -> NDArray[np.int64]:
        """The intended instants of answered requests, which belong to ``summary.total.latency``."""
        outcomes = self.run.outcomes
        return outcomes.intended_ns[is_answered(outcomes.outcome)]

    def slots(self, requests_per_slot: int) -> int:
        return max(1, min(_MOST_SLOTS, len(self.run.outcomes) // requests_per_slot))

    def slot_of(self, instants_ns: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
        return slot_numbers(instants_ns, self.seconds * SECOND, slots)

    def counts(self, instants_ns: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
        """Of the instants within the measured time, by slot."""
        within = instants_ns[instants_ns <= self.seconds * SECOND]
        return np.bincount(self.slot_of(within, slots), minlength=slots)


def shown_runs(runs: Sequence[Run]) -> list[ShownRun]:
    return [ShownRun(run, summarize(run), _label(number), f"run{number % COLOURS}") for number, run in enumerate(runs)]


def _label(number: int) -> str:
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
