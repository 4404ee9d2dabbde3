"""Evaluation of the learned policy beside Prequal, as it is shipped: with its guard rails and control slice.

Workloads are of two sorts: kinds of the training with other seeds, and held-out kinds. Both policies meet the same
requests, so figures are compared run by run.
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

#: Requests of one run: its p99.9 is the twentieth-slowest request.
REQUESTS = 20_000
#: First seed of an evaluation; episodes of training draw 32-bit seeds.
FIRST_SEED = 1 << 40
_FIGURES = ("p50_ms", "p99_ms", "p99.9_ms")

#: Called before each run with its description, the runs done so far, and their total.
Progress = Callable[[str, int, int], None]


class Comparison(NamedTuple):
    """The comparison on one workload over all seeds."""

    workload: str
    held_out: bool
    #: Medians over the seeds: p50, p99, p99.9 in ms.
    prequal: tuple[float, ...]
    learned: tuple[float, ...]
    #: Share of requests that were late, rejected or failed.
    prequal_missed: float
    learned_missed: float
    #: p99 of learned relative to Prequal's, seed by seed.
    ratios: tuple[float, ...]
    #: Gateways that switched the model off, and all gateways, over all runs.
    switched_off: int
    gateways: int

    @property
    def ratio(self) -> float:
        return exp(sum(map(log, self.ratios)) / len(self.ratios))


def run(weights: Weights, seeds: int, progress: Progress | None = None, requests: int = REQUESTS) -> list[Comparison]:
    """Evaluate every workload with ``seeds`` seeds each."""
    kinds = [(kind, False) for kind in TRAINING] + [(kind, True) for kind in HELD_OUT]
    comparisons = []
    for number, (kind, held_out) in enumerate(kinds):
        for_kind = None
        if progress is not None:
            for_kind = _for_kind(progress, number * seeds, len(kinds) * seeds)
        comparisons.append(compare(kind, held_out, weights, seeds, requests, for_kind))
    return comparisons


def compare(
    kind: Kind,
    held_out: bool,
    weights: Weights,
    seeds: int,
    requests: int = REQUESTS,
    progress: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Evaluate one workload."""
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
            progress(f"evaluation: {name}", seed - FIRST_SEED)
        usual.append(outcome(scenario, Prequal, seed))
        learned.append(outcome(scenario, factory, seed))
    return Comparison(
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
    lost = sum(figures["late"] + figures["rejected"] + figures["failed"] for figures in runs)
    return float(lost / sum(figures["offered"] for figures in runs))


def table(comparisons: Sequence[Comparison]) -> Table:
    """Both policies side by side. A ratio below 1 means that learned is faster."""
    seeds = len(comparisons[0].ratios)
    title = f"learned beside prequal, ms, prequal → learned: medians of {seeds} seeds; p99 ratio: mean, lowest–highest"
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    shown.add_column("workload", no_wrap=True)
    for column in ("p50", "p99", "p99.9", "missed", "p99 ratio", "spread", "switched off"):
        shown.add_column(column, justify="right", no_wrap=True)
    for each in comparisons:
        shown.add_row(
            each.workload + (", held out" if each.held_out else ""),
            *(f"{before:,.2f} → {after:,.2f}" for before, after in zip(each.prequal, each.learned, strict=True)),
            f"{each.prequal_missed:.2%} → {each.learned_missed:.2%}",
            f"{each.ratio:.3f}",
            f"{min(each.ratios):.3f}–{max(each.ratios):.3f}",
            f"{each.switched_off} of {each.gateways}",
        )
    return shown
