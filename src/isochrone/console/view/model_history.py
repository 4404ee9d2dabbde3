"""One model over time: percentiles and the heat map of its latencies, as columns. Pure.

Browsers ask for it once, when a chart appears, and add the seconds that the live stream brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from isochrone.console.view.latencies import percentiles
from isochrone.control.figures.frames import Frame, merged_models
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

#: Seconds that can be asked for.
RANGES: Final = (300, 3600, 86_400)
#: Upper bounds of the heat map's rows in milliseconds; the last row, without one, is above.
BOUNDS_MS: Final = tuple(bound / 1e6 for bound in BUCKET_BOUNDS_NS)


@dataclass(frozen=True, slots=True)
class HeatMap:
    """By column: answered requests by bucket of duration; buckets without any are left out."""

    bounds_ms: tuple[float, ...]
    columns: tuple[Mapping[int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelHistory:
    #: "": all models together.
    model: str
    seconds: int
    #: Seconds of one column.
    step: int
    at: tuple[int, ...]
    rate: tuple[float, ...]
    p50: tuple[float, ...]
    p95: tuple[float, ...]
    p99: tuple[float, ...]
    missed: tuple[float, ...]
    heat: HeatMap


def model_history(frames: Sequence[Frame], model: str, seconds: int) -> ModelHistory:
    """``frames``: those of the last ``seconds``."""
    step = frames[0].seconds if frames else 1
    if model:
        figures = [frame.model(model) for frame in frames]
    else:
        figures = [merged_models("", frame.models.values()) for frame in frames]
    points = [percentiles(each, step) for each in figures]
    return ModelHistory(
        model,
        seconds,
        step,
        tuple(frame.at for frame in frames),
        tuple(each.rate for each in points),
        tuple(each.p50 for each in points),
        tuple(each.p95 for each in points),
        tuple(each.p99 for each in points),
        tuple(each.missed for each in points),
        HeatMap(BOUNDS_MS, tuple(each.durations for each in figures)),
    )
