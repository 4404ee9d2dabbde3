"""The order of the search: cheap changes first, then precision, then pruning; combinations only of what helped. Pure.

Each stage is a function from what was measured so far to the candidates to try next. Every stage begins from the
fastest candidate whose accuracy is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from isochrone.optimize.searching.candidate import Candidate, Goal, Outcome, RunSettings
from isochrone.optimize.searching.choice import CLEARLY_SLOWER, HOPELESSLY_SLOWER, fastest, is_clearly_slower, is_faster


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be tried on this model and this machine, by name, each in the order of its cost."""

    settings: tuple[RunSettings, ...]
    """The first are those of the float model."""
    graph: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    pruning: tuple[tuple[str, ...], ...] = ()
    """Series of growing strength: a member is tried unless the accuracy of the one before it is not accepted."""


@dataclass(frozen=True, slots=True)
class Progress:
    offer: Offer
    goal: Goal
    outcomes: Sequence[Outcome]

    @property
    def float_model(self) -> Candidate:
        return Candidate((), self.offer.settings[0])

    def best(self) -> Candidate:
        found = fastest(self.outcomes, self.goal)
        return found.candidate if found is not None else self.float_model

    def accepted(self, candidate: Candidate) -> bool:
        found = self._of(candidate)
        return found is not None and found.figures is not None and self.goal.accepts(found.figures)

    def is_rejected(self, candidate: Candidate) -> bool:
        """Whether it was measured and lost too much accuracy."""
        found = self._of(candidate)
        return found is not None and found.figures is not None and not self.goal.accepts(found.figures)

    def helped(self, candidate: Candidate, base: Candidate) -> bool:
        """Whether a candidate's accuracy is accepted and it is faster than ``base`` beyond noise."""
        one, other = self._of(candidate), self._of(base)
        return (
            self.accepted(candidate)
            and one is not None
            and other is not None
            and one.figures is not None
            and other.figures is not None
            and is_faster(one.figures, other.figures)
        )

    def graph_of(self, candidate: Candidate) -> tuple[str, ...]:
        return tuple(name for name in candidate.transformations if name in self.offer.graph)

    def _of(self, candidate: Candidate) -> Outcome | None:
        return next((outcome for outcome in self.outcomes if outcome.candidate == candidate), None)


def the_float_model(progress: Progress) -> list[Candidate]:
    return [progress.float_model]


def graph_changes(progress: Progress) -> list[Candidate]:
    return [Candidate((name,), progress.offer.settings[0]) for name in progress.offer.graph]


def graph_changes_together(progress: Progress) -> list[Candidate]:
    base = progress.float_model
    names = tuple(name for name in progress.offer.graph if progress.helped(Candidate((name,), base.settings), base))
    return [Candidate(names, base.settings)] if len(names) > 1 else []


def run_settings(progress: Progress) -> list[Candidate]:
    best = progress.best()
    return [Candidate(best.transformations, settings) for settings in progress.offer.settings[1:]]


def precisions(progress: Progress) -> list[Candidate]:
    best = progress.best()
    # Quantizers know the operators of onnxruntime's float graphs: the settings that ran the float graph fastest may be
    # of another runtime, so each precision also runs with the first settings of onnxruntime.
    graph = progress.graph_of(best)
    everywhere = [best.settings, progress.offer.settings[0]]
    return [
        Candidate((*graph, name), settings)
        for name in progress.offer.precision
        for settings in dict.fromkeys(everywhere)
    ]


def settings_of_helpful_precisions(progress: Progress) -> list[Candidate]:
    base = progress.float_model
    found = [
        outcome.candidate
        for outcome in progress.outcomes
        if _has_any(outcome.candidate, progress.offer.precision) and progress.helped(outcome.candidate, base)
    ]
    graphs = dict.fromkeys(candidate.transformations for candidate in found)
    return [
        Candidate(graph, settings)
        for graph in graphs
        for settings in progress.offer.settings
        if not _is_poor(progress, graph, settings)
    ]


def _is_poor(progress: Progress, graph: tuple[str, ...], settings: RunSettings) -> bool:
    """Whether a runtime is not worth another trial of a file: judged by that file, or by the one without the precision.

    The number of threads changes neither the outputs nor whether a file can be run.
    """
    if any(outcome.candidate.transformations == graph for outcome in _of_runtime(progress, settings)):
        return _is_worse(progress, graph, settings, CLEARLY_SLOWER)
    before = tuple(name for name in graph if name not in progress.offer.precision)
    return _is_worse(progress, before, settings, HOPELESSLY_SLOWER)


def _is_worse(progress: Progress, graph: tuple[str, ...], settings: RunSettings, times: float) -> bool:
    """Whether a runtime has no accepted result of a file that it ran, or at best a clearly slower one than another.

    Slower counts only with at least as many threads as the other runtime had.
    """
    tried = [outcome for outcome in progress.outcomes if outcome.candidate.transformations == graph]
    accepted = [
        (outcome.candidate.settings, outcome.figures)
        for outcome in tried
        if outcome.figures is not None and progress.goal.accepts(outcome.figures)
    ]
    own = [(each, figures) for each, figures in accepted if _runtime(each) == _runtime(settings)]
    if not own:
        return any(_runtime(outcome.candidate.settings) == _runtime(settings) for outcome in tried)
    best_settings, best = min(own, key=lambda each: each[1].milliseconds)
    return any(
        each.threads <= best_settings.threads and is_clearly_slower(best, figures, times)
        for each, figures in accepted
        if _runtime(each) != _runtime(settings)
    )


def _of_runtime(progress: Progress, settings: RunSettings) -> list[Outcome]:
    return [each for each in progress.outcomes if _runtime(each.candidate.settings) == _runtime(settings)]


def _runtime(settings: RunSettings) -> tuple[str, bool]:
    return settings.runtime, settings.bf16


def first_prunings(progress: Progress) -> list[Candidate]:
    return [_pruned(progress, series[0]) for series in progress.offer.pruning]


def second_prunings(progress: Progress) -> list[Candidate]:
    return _stronger(progress, 1)


def third_prunings(progress: Progress) -> list[Candidate]:
    return _stronger(progress, 2)


def pruning_with_precision(progress: Progress) -> list[Candidate]:
    """The strongest pruning that helped with the fastest precision that helped."""
    base = progress.float_model
    names = [name for series in progress.offer.pruning for name in series]
    helpful = [
        outcome
        for outcome in progress.outcomes
        if _has_any(outcome.candidate, names) and progress.helped(outcome.candidate, base)
    ]
    precise = [
        outcome
        for outcome in progress.outcomes
        if _has_any(outcome.candidate, progress.offer.precision) and progress.helped(outcome.candidate, base)
    ]
    pruned, quantized = fastest(helpful, progress.goal), fastest(precise, progress.goal)
    if pruned is None or quantized is None:
        return []
    graph = progress.graph_of(quantized.candidate)
    cut = tuple(name for name in pruned.candidate.transformations if name in names)
    last = tuple(name for name in quantized.candidate.transformations if name in progress.offer.precision)
    return [Candidate((*cut, *graph, *last), quantized.candidate.settings)]


def _pruned(progress: Progress, name: str) -> Candidate:
    """Pruned before anything else: fused operators hide the weights."""
    float_best = _fastest_float(progress)
    return Candidate((name, *progress.graph_of(float_best)), float_best.settings)


def _stronger(progress: Progress, place: int) -> list[Candidate]:
    return [
        _pruned(progress, series[place])
        for series in progress.offer.pruning
        if len(series) > place and not progress.is_rejected(_pruned(progress, series[place - 1]))
    ]


def _fastest_float(progress: Progress) -> Candidate:
    plain = [
        outcome
        for outcome in progress.outcomes
        if all(name in progress.offer.graph for name in outcome.candidate.transformations)
    ]
    found = fastest(plain, progress.goal)
    return found.candidate if found is not None else progress.float_model


def _has_any(candidate: Candidate, names: Sequence[str]) -> bool:
    return any(name in names for name in candidate.transformations)


Stage = Callable[[Progress], list[Candidate]]

STAGES: Final[tuple[Stage, ...]] = (
    the_float_model,
    graph_changes,
    graph_changes_together,
    run_settings,
    precisions,
    settings_of_helpful_precisions,
    first_prunings,
    second_prunings,
    third_prunings,
    pruning_with_precision,
)
