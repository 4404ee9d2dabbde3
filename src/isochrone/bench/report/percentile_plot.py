"""The percentile curve: latency by percentile, with as much room for each further nine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isochrone.bench.analysis.distribution import Distribution
from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.analysis.summary import PERCENTILES
from isochrone.bench.report.scales import log_scale, percentile_scale
from isochrone.bench.report.shown_run import ShownRun
from isochrone.bench.report.svg import Plot, Points

_POINTS = 60
_MOST_NINES = 4.0


def percentile_curve(runs: Sequence[ShownRun]) -> str:
    """From the intended instant with its interval, and from the sending: where they part, requests were sent late."""
    shown_any = [shown for shown in runs if len(shown.summary.total.latency)]
    if not shown_any:
        return ""
    totals = [shown.summary.total for shown in shown_any]
    values = [total.latency.sorted for total in totals] + [total.latency_from_sending.sorted for total in totals]
    plot = Plot(
        "Latency by percentile",
        percentile_scale(max(len(total.latency) for total in totals)),
        log_scale(max(1.0, min(float(each[0]) for each in values)), max(float(each[-1]) for each in values), shown_ns),
        "percentile",
    )
    for shown, total in zip(shown_any, totals, strict=True):
        percents = _percents(len(total.latency))
        curve = [(percent, total.latency.percentile(percent)) for percent in percents]
        estimates = [(percent, estimate) for percent, estimate in curve if estimate is not None]
        highest = float(total.latency.highest)
        plot.band(
            [(percent, estimate.low) for percent, estimate in estimates],
            [(percent, min(estimate.high, highest)) for percent, estimate in estimates],
            shown.colour,
        )
        plot.line(_line(total.latency_from_sending, percents), f"{shown.colour} dashed thin")
        plot.line([(percent, estimate.value) for percent, estimate in estimates], shown.colour)
        for percent in PERCENTILES:
            estimate = total.latency.percentile(percent)
            if estimate is not None and percent <= percents[-1]:
                text = f"{shown.label} p{percent:g}: {shown_ns(estimate.value)}"
                text += f" ({shown_ns(estimate.low)} to {shown_ns(estimate.high)})"
                plot.dot(percent, estimate.value, shown.colour, text)
        plot.legend(f"{shown.label} from the intended instant", shown.colour)
        plot.legend(f"{shown.label} from the sending", f"{shown.colour} dashed thin")
    return plot.html()


def _percents(count: int) -> list[float]:
    nines = np.linspace(0.0, min(_MOST_NINES, math.log10(max(count, 2))), _POINTS)
    return [max(0.01, 100 * (1 - 10.0**-each)) for each in nines.tolist()]


def _line(distribution: Distribution, percents: Sequence[float]) -> Points:
    ranks = np.ceil(np.array(percents) / 100 * len(distribution) - 1e-6).astype(np.int64)
    values = distribution.sorted[np.clip(ranks, 1, len(distribution)) - 1]
    return list(zip(percents, values.astype(np.float64).tolist(), strict=True))
