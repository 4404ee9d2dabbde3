"""The heat map of a run: how many answers had which latency at which time."""

from __future__ import annotations

import math

import numpy as np

from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.report.scales import log_scale, time_scale
from isochrone.bench.report.shown_run import ShownRun
from isochrone.bench.report.svg import Plot

#: The style has so many shades.
LEVELS = 8
_ROWS = 40
_REQUESTS_PER_SLOT = 20


def heat_map(shown: ShownRun) -> str:
    """Latencies in logarithmic rows; the shade is the logarithm of the count."""
    latency = np.maximum(shown.summary.total.latency.values, 1)
    if not len(latency):
        return ""
    slots = shown.slots(_REQUESTS_PER_SLOT)
    low, high = float(latency.min()), float(latency.max())
    if high < low * 1.2:
        low, high = low / 1.2, high * 1.2
    step = math.log(high / low) / _ROWS
    rows = np.clip((np.log(latency / low) / step).astype(np.int64), 0, _ROWS - 1)
    columns = shown.slot_of(shown.latency_instants, slots)
    counts = np.bincount(columns * _ROWS + rows, minlength=slots * _ROWS)
    most = int(counts.max())
    levels = np.ceil(np.log1p(counts) / math.log1p(most) * LEVELS).astype(np.int64)
    plot = Plot(
        f"{shown.label}: latencies over time; at most {most:,} answers per cell",
        time_scale(shown.seconds),
        log_scale(low, high, shown_ns),
        "seconds",
    )
    width = shown.seconds / slots
    for level in range(1, LEVELS + 1):
        boxes = []
        for cell in np.flatnonzero(levels == level).tolist():
            column, row = divmod(cell, _ROWS)
            bottom, top = low * math.exp(step * row), low * math.exp(step * (row + 1))
            boxes.append((column * width, bottom, (column + 1) * width, top))
        plot.boxes(boxes, f"heat heat{level}")
    return plot.html()
