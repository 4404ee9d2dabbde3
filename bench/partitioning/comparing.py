"""Which option is the fastest over a link, and how close the chosen one is, by real requests.

Options take turns in blocks of requests, so that a slow phase of the machine falls on all of them. The first request
of a block is left out: its connection was idle, and TCP starts anew. The least of several noisy medians is lower than
each of them: so the chosen and the best option are measured once more, in turns, and only these figures are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Measure = Callable[[], float]

BLOCK = 5
#: An option that is predicted to take so many times as long as the fastest is not tried at all.
UNTRIED = 10.0
#: An option whose first request takes so many times as long as the fastest one's is not measured further.
HOPELESS = 4.0
#: After some rounds, so does one whose quickest requests are slower than the median of the best by this factor.
BEHIND = 1.3
_ROUNDS_BEFORE = 3
_LEAST_DUELS = 4


@dataclass
class Comparison:
    """``samples``: seconds, by option. ``chosen_again``, ``best_again``: of the last part, in turns."""

    chosen: str
    samples: dict[str, list[float]]
    #: Seconds of their only request; None: untried.
    left_out: dict[str, float | None] = field(default_factory=dict)
    best: str = ""
    chosen_again: list[float] = field(default_factory=list)
    best_again: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the chosen option's median to the best one's: 1 if it is the best."""
        if self.best == self.chosen:
            return 1.0
        return statistics.median(self.chosen_again) / statistics.median(self.best_again)

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])


def compare(
    options: Mapping[str, Measure],
    predicted: Mapping[str, float],
    chosen: str,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Comparison:
    """``seconds``: about so long, half as long again for the last part if the chosen one is not the best."""
    found = Comparison(chosen, {name: [] for name in options})
    limit = UNTRIED * min(predicted.values())
    first = {name: options[name]() for name in options if predicted[name] <= limit or name == chosen}
    least = min(first.values())
    running = [name for name in first if first[name] <= HOPELESS * least or name == chosen]
    found.left_out = {name: first.get(name) for name in options if name not in running}
    ends, rounds = clock() + seconds, 0
    while rounds < _ROUNDS_BEFORE or clock() < ends:
        for name in running if rounds % 2 else reversed(running):
            found.samples[name] += _block(options[name])
        rounds += 1
        if rounds >= _ROUNDS_BEFORE:
            running = contenders(found.samples, running, chosen)
            if len(running) == 1:
                break
    found.best = min((name for name in options if found.samples[name]), key=found.median)
    if found.best == chosen:
        return found
    ends, duels = clock() + seconds / 2, 0
    while duels < _LEAST_DUELS or clock() < ends:
        for name in (chosen, found.best) if duels % 2 else (found.best, chosen):
            samples = found.chosen_again if name == chosen else found.best_again
            samples += _block(options[name])
        duels += 1
    return found


def contenders(samples: Mapping[str, Sequence[float]], running: Sequence[str], chosen: str) -> list[str]:
    """Those that may still be the best, and the chosen one. Pure."""
    least = min(statistics.median(samples[name]) for name in running)
    return [name for name in running if name == chosen or min(samples[name]) <= BEHIND * least]


def _block(measure: Measure) -> list[float]:
    measure()
    return [measure() for _ in range(BLOCK)]
