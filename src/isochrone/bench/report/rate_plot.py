"""Latency by rate, of runs at several rates: where a server's limit is."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.report.scales import linear_scale, log_scale
from isochrone.bench.report.shown_run import ShownRun
from isochrone.bench.report.svg import Plot

_FEWEST_RATES = 3
_LINES = ((50.0, "good thin"), (99.0, "answered"))


def latency_by_rate(runs: Sequence[ShownRun]) -> str:
    """The median and the p99 of each run; empty for fewer than three rates."""
    points: dict[float, list[tuple[float, float, ShownRun]]] = {percent: [] for percent, _ in _LINES}
    for shown in runs:
        for percent, found in points.items():
            estimate = shown.summary.total.latency.percentile(percent)
            if shown.run.rate is not None and estimate is not None:
                found.append((shown.run.rate, estimate.value, shown))
    rates = {rate for found in points.values() for rate, *_ in found}
    if len(rates) < _FEWEST_RATES:
        return ""
    heights = [value for found in points.values() for _, value, _ in found]
    plot = Plot(
        "Latency by rate, from the intended instant",
        linear_scale(max(rates), lambda value: f"{value:,.6g}"),
        log_scale(max(1.0, min(heights)), max(heights), shown_ns),
        "requests per second",
    )
    for percent, style in _LINES:
        line = sorted((rate, value) for rate, value, _ in points[percent])
        plot.line(line, style)
        for rate, value, shown in points[percent]:
            plot.dot(rate, value, style, f"{shown.label}: p{percent:g} {shown_ns(value)} at {shown.load}")
        plot.legend(f"p{percent:g}", style)
    return plot.html()
