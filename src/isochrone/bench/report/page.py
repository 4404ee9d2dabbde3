"""The report of runs: one HTML file that opens anywhere and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from isochrone.bench.analysis.binomial import CONFIDENCE
from isochrone.bench.analysis.bottleneck import generator_verdict
from isochrone.bench.analysis.comparison import Comparison, compare
from isochrone.bench.report.heat_map import heat_map
from isochrone.bench.report.percentile_plot import percentile_curve
from isochrone.bench.report.rate_plot import latency_by_rate
from isochrone.bench.report.shown_run import ShownRun, shown_runs
from isochrone.bench.report.style import STYLE
from isochrone.bench.report.tables import comparison_table, errors_table, latency_table, runs_table
from isochrone.bench.report.time_plots import errors_over_time, latency_over_time, rates_over_time
from isochrone.bench.results.outcomes import Run
from isochrone.errors import FlagError
from isochrone.whole_files import write_whole

#: The page may load nothing, and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(path: Path, runs: Sequence[Run], flag: str = "--report") -> None:
    """Written beside the file and renamed. Raises ``FlagError`` if there is no run, or no file can be written."""
    if not runs:
        raise FlagError(flag, "at least one run to report on", "none")
    try:
        write_whole(path, report_page(runs))
    except OSError as error:
        raise FlagError(flag, f"a file that can be written at {path}", error.strerror or str(error)) from None


def report_page(runs: Sequence[Run]) -> str:
    """Of at least one run. The others are compared with the first."""
    shown = shown_runs(runs)
    title = "Load on " + ", ".join(dict.fromkeys(run.target for run in runs))
    body = [
        f"<h1>{escape(title)}</h1>",
        *_descriptions(shown),
        *(f'<p class="warning">{escape(text)}</p>' for text in _generator_verdicts(shown)),
        "<h2>Summary</h2>",
        runs_table(shown),
        "<h2>Latency of answered requests</h2>",
        latency_table(shown),
        f'<p class="note">Small figures: exact intervals that hold the true value with {CONFIDENCE * 100:g} %'
        " confidence, wider where slow requests come together in time. ∞: too few requests for an upper bound.</p>",
        *_comparisons(shown),
        "<h2>Plots</h2>",
        f'<div class="plots">{"".join(_plots(shown))}</div>',
        "<h2>Errors</h2>",
        errors_table(shown) or "<p>No error was reported.</p>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _descriptions(runs: Sequence[ShownRun]) -> Iterable[str]:
    yield "<dl>"
    for shown in runs:
        run = shown.run
        text = f"{run.target}, {shown.load}, {run.seconds:,.4g} s from {run.started_at}: {', '.join(run.kinds)}"
        yield f'<dt><b class="{shown.colour} name">{escape(shown.label)}</b></dt><dd>{escape(text)}</dd>'
    yield "</dl>"


def _generator_verdicts(runs: Sequence[ShownRun]) -> Iterable[str]:
    for shown in runs:
        verdict = generator_verdict(shown.run)
        if verdict is not None:
            yield f"{shown.label}: {verdict}"


def _comparisons(runs: Sequence[ShownRun]) -> Iterable[str]:
    first, *others = runs
    # Of many runs, those at another load are a ramp: their differences say nothing.
    if len(others) > 1:
        others = [
            each for each in others if (each.run.rate, each.run.in_flight) == (first.run.rate, first.run.in_flight)
        ]
    if others:
        yield "<h2>Comparison</h2>"
    for other in others:
        yield from _comparison(first, other, compare(first.run, other.run))


def _comparison(first: ShownRun, other: ShownRun, comparison: Comparison) -> Iterable[str]:
    yield f"<h3>{escape(other.label)} measured by {escape(first.label)}</h3>"
    yield f'<p class="verdict">{escape(comparison.sentence)}</p>'
    yield from (f'<p class="warning">{escape(text)}</p>' for text in comparison.warnings)
    yield comparison_table(comparison, (first.label, other.label))
    yield f'<p class="note">{escape(comparison.method)}</p>'


def _plots(runs: Sequence[ShownRun]) -> Iterable[str]:
    yield latency_by_rate(runs)
    yield latency_over_time(runs)
    yield percentile_curve(runs)
    # The same plot of all runs side by side.
    for plot in (heat_map, rates_over_time, errors_over_time):
        yield from map(plot, runs)
