"""Times of batches of every size, of those that were measured. Pure.

Between two measured sizes they lie on a line. Below the smallest, a batch takes as long as that. Beyond the largest,
they go on along the line from the first to the last; where only one size was measured, larger batches save nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isochrone.clock import MILLISECOND


def batch_times(points: Sequence[tuple[int, float]], max_rows: int) -> list[float]:
    """ns by number of rows, of measured (rows, ms) by growing rows; index 0 is unused."""
    sizes = [rows for rows, _ in points]
    # A larger batch is never expected to be faster, whatever was measured by chance.
    measured = np.maximum.accumulate([milliseconds * MILLISECOND for _, milliseconds in points])
    rows = np.arange(max_rows + 1)
    times = np.interp(rows, sizes, measured)
    last = sizes[-1]
    if max_rows > last:
        if len(sizes) > 1:
            slope = (measured[-1] - measured[0]) / (last - sizes[0])
        else:
            slope = measured[-1] / last
        times[last:] = measured[-1] + slope * (rows[last:] - last)
    found: list[float] = times.tolist()
    return found


def points_for(curves: dict[str, tuple[tuple[int, float], ...]], device: str) -> Sequence[tuple[int, float]]:
    """Those of a kind of device. One that was not measured counts as the slowest that was."""
    known = curves.get(device) or curves.get("")
    return known or max(curves.values(), key=lambda points: points[0][1] / points[0][0])
