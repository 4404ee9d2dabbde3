"""The learned policy on trial: as it is shipped, guard rails and control slice and all, beside Prequal.

Two sorts of workload: kinds it was trained on, with seeds it never saw, and kinds that training holds nothing like.
Both policies meet the same requests, so figures are compared run by run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from random import Random
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from isochrone.gateway.policies.learned.model import Weights
from isochrone.gateway.policies.learned.policy import Learned
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.simulate.training.episodes import outcome
from isochrone.simulate.training.scenarios import HELD_OUT, TRAINING, Kind

#: Requests of one run: with five seeds, a p99.9 is the median of five twentieth-slowest.
REQUESTS = 20_000
#: Seeds of trials begin here; episodes of training draw theirs from all 32 bits.
FIRST_SEED = 1 << 40
_FIGURES = ("p50_ms", "p99_ms", "p99.9_ms")

#: Told before each run: what is done, how many runs are done, and how many there are.
Progress = Callable[[str, int, int], None]


class Trial(NamedTuple):
    """One workload over all seeds."""

    workload: str
    held_out: bool
    #: Medians over the seeds: p50, p99, p99.9 in ms.
    prequal: tuple[float, ...]
    learned: tuple[float, ...]
    #: Share of requests that were late, refused or failed.
    prequal_missed: float
    learned_missed: float
    #: p99 of learned over that of Prequal, seed by seed.
    ratios: tuple[float, ...]
    #: Gateways that switched the model off, of all gateways in all runs.
    switched_off: int
    gateways: int

    @property
    def ratio(self) -> float:
        return exp(sum(map(log, self.ratios)) / len(self.ratios))


def run(weights: Weights, seeds: int, progress: Progress | None = None, requests: int = REQUESTS) -> list[Trial]:
    """Every workload, over so many seeds each."""
    kinds = [(kind, False) for kind in TRAINING] + [(kind, True) for kind in HELD_OUT]
    trials = []
    for number, (kind, held_out) in enumerate(kinds):
        told = None
        if progress is not None:
            told = _for_kind(progress, number * seeds, len(kinds) * seeds)
        trials.append(try_one(kind, held_out, weights, seeds, requests, told))
    return trials


def try_one(
    kind: Kind,
    held_out: bool,
    weights: Weights,
    seeds: int,
    requests: int = REQUESTS,
    progress: Callable[[str, int], None] | None = None,
) -> Trial:
    """One workload."""
    usual: list[dict[str, Any]] = []
    learned: list[dict[str, Any]] = []
    policies: list[Learned] = []
    name = ""

    def factory(random: Random) -> Learned:
        policies.append(Learned(random, weights=weights))
        return policies[-1]

    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        scenario = kind(Random(f"trial {seed}"), requests)
        name = scenario.name
        if progress is not None:
            progress(f"trial: {name}", seed - FIRST_SEED)
        usual.append(outcome(scenario, Prequal, seed))
        learned.append(outcome(scenario, factory, seed))
    return Trial(
        name,
        held_out,
        _medians(usual),
        _medians(learned),
        _missed(usual),
        _missed(learned),
        tuple(own["p99_ms"] / theirs["p99_ms"] for own, theirs in zip(learned, usual, strict=True)),
        sum(bool(policy.alert) for policy in policies),
        len(policies),
    )


def _for_kind(progress: Progress, done: int, whole: int) -> Callable[[str, int], None]:
    return lambda name, more: progress(name, done + more, whole)


def _medians(runs: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    return tuple(median(figures[name] for figures in runs) for name in _FIGURES)


def _missed(runs: Sequence[dict[str, Any]]) -> float:
    lost = sum(figures["late"] + figures["refused"] + figures["failed"] for figures in runs)
    return float(lost / sum(figures["offered"] for figures in runs))


def table(trials: Sequence[Trial]) -> Table:
    """Learned beside Prequal. Ratios below 1: learned is quicker."""
    seeds = len(trials[0].ratios)
    title = f"learned beside prequal, ms, prequal → learned: medians of {seeds} seeds; p99 ratio: mean, lowest–highest"
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    shown.add_column("workload", no_wrap=True)
    for column in ("p50", "p99", "p99.9", "missed", "p99 ratio", "spread", "switched off"):
        shown.add_column(column, justify="right", no_wrap=True)
    for trial in trials:
        shown.add_row(
            trial.workload + (", held out" if trial.held_out else ""),
            *(f"{before:,.2f} → {after:,.2f}" for before, after in zip(trial.prequal, trial.learned, strict=True)),
            f"{trial.prequal_missed:.2%} → {trial.learned_missed:.2%}",
            f"{trial.ratio:.3f}",
            f"{min(trial.ratios):.3f}–{max(trial.ratios):.3f}",
            f"{trial.switched_off} of {trial.gateways}",
        )
    return shown
