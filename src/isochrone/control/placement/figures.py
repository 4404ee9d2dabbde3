"""Figures of models and workers that a plan is made with: measured, or stated by a caller in their place. Pure.

What nobody measured is absent, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.control.placement.needs import BatchCurve
from isochrone.control.state.records import FiguresRecord
from isochrone.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Figures:
    """Of models by name, and of workers by name."""

    #: Rows per second that callers offer, accepted or not.
    rates: Mapping[str, float] = field(default_factory=dict)
    #: By model, by kind of device; the kind "" counts for all.
    curves: Mapping[str, Mapping[str, BatchCurve]] = field(default_factory=dict)
    #: Batches that one replica runs at the same time.
    instances: Mapping[str, int] = field(default_factory=dict)
    #: Seconds from gateways to a worker and back.
    round_trips: Mapping[str, float] = field(default_factory=dict)


UNMEASURED = Figures()


def measured_figures(record: FiguresRecord | None) -> Figures:
    """Those of the record, without those that make no sense: they may come from a controller of another release."""
    if record is None:
        return UNMEASURED
    curves: dict[str, dict[str, BatchCurve]] = {}
    for model, by_device in record.curves.items():
        for device, points in by_device.items():
            try:
                curves.setdefault(model, {})[device] = BatchCurve(points)
            except InvalidArgument:
                continue
    return Figures(
        {model: rate for model, rate in record.rates.items() if 0 <= rate < math.inf},
        {model: by_device for model, by_device in curves.items() if by_device},
        {model: number for model, number in record.instances.items() if number >= 1},
        {worker: seconds for worker, seconds in record.round_trips.items() if 0 <= seconds < math.inf},
    )


def figures_record(figures: Figures) -> FiguresRecord:
    """Sorted, so that equal figures are equal bytes."""
    return FiguresRecord(
        dict(sorted(figures.rates.items())),
        {
            model: {device: curve.points for device, curve in sorted(by_device.items())}
            for model, by_device in sorted(figures.curves.items())
        },
        dict(sorted(figures.instances.items())),
        dict(sorted(figures.round_trips.items())),
    )


@dataclass(frozen=True, slots=True)
class StatedFigures:
    """Figures of the caller, in place of measured ones."""

    #: Requests per second, and milliseconds of one run, by model.
    rates: Mapping[str, float] = field(default_factory=dict)
    run_ms: Mapping[str, float] = field(default_factory=dict)
    #: Workers that count as lost.
    without: frozenset[str] = frozenset()

    def over(self, measured: Figures) -> Figures:
        """The measured figures, except where the caller states others."""
        runs = {model: {"": BatchCurve(((1, run / 1000),))} for model, run in self.run_ms.items()}
        return Figures(
            {**measured.rates, **self.rates}, {**measured.curves, **runs}, measured.instances, measured.round_trips
        )
