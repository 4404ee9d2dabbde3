"""Plots over the time of a run: latency, rates and outcomes other than ok."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.analysis.summary import answer_instants, is_answered
from isochrone.bench.report.scales import Scale, linear_scale, log_scale, time_scale
from isochrone.bench.report.shown_run import ShownRun
from isochrone.bench.report.svg import Plot
from isochrone.bench.results.outcomes import LATE, OK, OUTCOME_NAMES

_REQUESTS_PER_SLOT = 50


def latency_over_time(runs: Sequence[ShownRun]) -> str:
    """The median and the p99 of each slot of time, all runs in one plot."""
    lines = []
    for shown in runs:
        latency, slots = shown.summary.total.latency.values, shown.slots(_REQUESTS_PER_SLOT)
        numbers = shown.slot_of(shown.latency_instants, slots)
        middle = [(number + 0.5) * shown.seconds / slots for number in range(slots)]
        # Columns are in order of the intended instant, so slots follow each other.
        parts = np.split(latency, np.searchsorted(numbers, np.arange(1, slots)))
        for percent, style in ((50, "thin"), (99, "")):
            points = [
                (at, float(np.percentile(part, percent, method="inverted_cdf")))
                for at, part in zip(middle, parts, strict=True)
                if len(part)
            ]
            lines.append((shown, f"{shown.label} p{percent}", f"{shown.colour} {style}", points))
    heights = [y for *_, points in lines for _, y in points]
    if not heights:
        return ""
    plot = Plot(
        "Latency over time, from the intended instant",
        time_scale(max(shown.seconds for shown in runs)),
        log_scale(min(heights), max(heights), shown_ns),
        "seconds",
    )
    for _, name, style, points in lines:
        plot.line(points, style)
        plot.legend(name, style)
    return plot.html()


def rates_over_time(shown: ShownRun) -> str:
    """Requests intended, answered, and answered within their deadline, per second."""
    outcomes = shown.run.outcomes
    slots = shown.slots(_REQUESTS_PER_SLOT)
    width = shown.seconds / slots
    rates = [
        (name, style, shown.counts(instants, slots) / width)
        for name, style, instants in (
            ("intended", "intended", outcomes.intended_ns),
            ("answered", "answered", answer_instants(shown.run, lambda part: is_answered(part.outcome))),
            ("within deadline", "good thin", answer_instants(shown.run, lambda part: part.outcome == OK)),
        )
    ]
    highest = max(float(rate.max()) for *_, rate in rates)
    plot = Plot(f"{shown.label}: requests per second", time_scale(shown.seconds), _rate_scale(highest), "seconds")
    for name, style, rate in rates:
        plot.line([((number + 0.5) * width, float(value)) for number, value in enumerate(rate)], style)
        plot.legend(name, style)
    return plot.html()


def errors_over_time(shown: ShownRun) -> str:
    """Late, rejected, failed and unsent requests per second, on top of each other; empty if there are none."""
    outcomes = shown.run.outcomes
    slots = shown.slots(_REQUESTS_PER_SLOT)
    width = shown.seconds / slots
    floor = np.zeros(slots)
    layers = []
    for outcome in range(LATE, len(OUTCOME_NAMES)):
        counts = shown.counts(outcomes.intended_ns[outcomes.outcome == outcome], slots) / width
        if counts.any():
            layers.append((OUTCOME_NAMES[outcome], floor, floor + counts))
            floor = floor + counts
    if not layers:
        return ""
    caption = f"{shown.label}: late and unanswered requests per second, by intended instant"
    plot = Plot(caption, time_scale(shown.seconds), _rate_scale(float(floor.max())), "seconds")
    for name, lower, upper in layers:
        boxes = (
            (number * width, float(lower[number]), (number + 1) * width, float(upper[number]))
            for number in range(slots)
            if upper[number] > lower[number]
        )
        plot.boxes(boxes, f"fill {name}")
        plot.legend(name, name)
    return plot.html()


def _rate_scale(highest: float) -> Scale:
    return linear_scale(highest, lambda value: f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:g}")
