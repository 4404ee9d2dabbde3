"""The last values of each line's figures, for trends. Pure and immutable: a paused view keeps its own.

Every update adds one value to each series, None if there is none, so that equal places are equal times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from isochrone.cli.top.samples import Sample

#: Updates that are kept: five minutes at the default interval.
KEPT = 300
#: Figures that have a trend.
TRENDS = ("requests", "runs", "p99_ms")
#: Lines that have trends; the rest of a huge fleet has only present figures.
_MOST_LINES = 2000

Series: TypeAlias = tuple[float | None, ...]
#: Kind, name of the line, figure.
Key: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Histories:
    series: Mapping[Key, Series] = field(default_factory=dict)
    #: Updates so far, also those that are no longer kept.
    updates: int = 0

    def of(self, kind: str, name: str, figure: str) -> Series:
        return self.series.get((kind, name, figure), ())


def add_sample(histories: Histories, sample: Sample | None) -> Histories:
    """None: an update failed. A series without a value for as long as values are kept is dropped."""
    values: dict[Key, float | None] = dict.fromkeys(histories.series)
    for kind, lines in (sample.lines if sample is not None else {}).items():
        for line in lines:
            for figure in TRENDS:
                value = line.figures.get(figure)
                key = (kind, line.name, figure)
                if key in values or (value is not None and len(values) < _MOST_LINES * len(TRENDS)):
                    values[key] = value
    grown = {key: (*histories.series.get(key, ()), value)[-KEPT:] for key, value in values.items()}
    kept = {key: each for key, each in grown.items() if any(value is not None for value in each)}
    return Histories(kept, histories.updates + 1)
