"""The report of a profile: one HTML file with plots and tables, and nothing that it loads from elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from isochrone.errors import FlagError
from isochrone.optimize.profiling.outcome import Outcome
from isochrone.optimize.profiling.results.plots import line_plot
from isochrone.optimize.profiling.search.search import Point

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1120px; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr.chosen { background: #eaf5ea; font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; } svg { width: 520px; max-width: 100%; }
svg text { font-size: 11px; fill: #444; } svg .title { font-size: 13px; font-weight: 600; }
svg .grid { stroke: #e4e4e4; } svg .limit { stroke: #b00; stroke-dasharray: 5 4; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; } .bar { background: #1f77b4; height: .7rem; }
"""
_OPERATOR_ROWS = 15


def report_page(outcome: Outcome, summary: str, diff: str) -> str:
    """``summary``: the recommendation in a sentence; ``diff``: what it changes in config.pbtxt."""
    title = f"{outcome.model}, version {outcome.version}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(summary)}</p>",
        f"<p>Backend {escape(outcome.backend)}, {outcome.cores} cores. {len(outcome.points)} configurations measured in"
        f" {outcome.seconds:.1f} s; a full sweep of the same ranges has {outcome.sweep_points}.</p>",
        *([f"<p>{escape(disturbance(outcome))}</p>"] if outcome.is_disturbed else []),
        "<h2>Latency and throughput by batch size, threads and instances</h2>",
        f'<div class="plots">{"".join(_plots(outcome))}</div>',
        "<p>Latency: the 99th percentile of runs while all instances are busy, and the time in which a batch fills at"
        " that throughput. Memory: resident, of the loaded instances and their runs, without the runtime itself.</p>",
        "<h2>Measured configurations</h2>",
        _points_table(outcome),
        *_failures(outcome),
        "<h2>Hottest operators</h2>",
        _operators(outcome),
        "<h2>Recommended change of config.pbtxt</h2>",
        f"<pre>{escape(diff or 'none: the model is configured so already')}</pre>",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Profile of {escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def disturbance(outcome: Outcome) -> str:
    return (
        f"Other processes used {outcome.other_cores:.1f} of {outcome.cores} cores meanwhile: throughputs are too low"
        " and latencies too high. Profile a machine on which nothing else runs."
    )


def write_report(path: Path, page: str) -> None:
    """Written beside the file and renamed."""
    unfinished = path.with_name(f".{path.name}.new")
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise FlagError("--report", f"a file that can be written at {path}", error.strerror or str(error)) from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _plots(outcome: Outcome) -> Iterable[str]:
    lines: dict[str, list[Point]] = {}
    for point in sorted(outcome.points, key=lambda each: (each.configuration.pair, each.configuration.batch)):
        threads, instances = point.configuration.pair
        lines.setdefault(f"{threads} × {instances} (threads × instances)", []).append(point)

    def series(value: str) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(each.configuration.batch, _figures(each)[value]) for each in points]
            for name, points in lines.items()
        }

    limit = None if outcome.slo_ns is None else (f"SLO {outcome.slo_ns / 1e6:g} ms", outcome.slo_ns / 1e6)
    yield line_plot("Throughput", "batch size", "rows per second", series("rows"))
    yield line_plot("Latency", "batch size", "milliseconds", series("latency"), limit)
    yield line_plot("Memory", "batch size", "MiB", series("memory"))


def _figures(point: Point) -> dict[str, float]:
    return {
        "rows": point.rows_per_second,
        "latency": point.value.latency_ns / 1e6,
        "memory": (point.memory_bytes or 0) / 2**20,
    }


def _points_table(outcome: Outcome) -> str:
    head = ("batch", "threads", "instances", "rows/s", "run ms", "p99 ms", "latency ms", "memory MiB", "runs")
    rows = []
    for point in sorted(outcome.points, key=lambda each: each.configuration):
        at, figures = point.configuration, _figures(point)
        cells = (
            *(str(number) for number in (at.batch, at.threads, at.instances)),
            f"{point.rows_per_second:,.0f}",
            *(f"{each / 1e6:.3f}" for each in (point.run_ns, point.p99_ns, point.value.latency_ns)),
            f"{figures['memory']:,.1f}",
            f"{point.runs:,}",
        )
        rows.append(_row(cells, "chosen" if point == outcome.found else ""))
    return _table(head, rows)


def _failures(outcome: Outcome) -> Iterable[str]:
    if outcome.failures:
        lines = (f"<li>{escape(str(each.configuration))}: {escape(each.message)}</li>" for each in outcome.failures)
        yield f"<h2>Configurations that failed</h2><ul>{''.join(lines)}</ul>"


def _operators(outcome: Outcome) -> str:
    if not outcome.operators:
        return f"<p>Backend {escape(outcome.backend)} has no profiler that is read here.</p>"
    rows = [
        f"<tr><td>{escape(each.name)}</td><td>{each.share:.1%}</td><td>{each.microseconds_per_run:,.1f}</td>"
        f'<td>{each.calls_per_run:g}</td><td><div class="bar" style="width:{each.share * 240:.0f}px"></div></td></tr>'
        for each in outcome.operators[:_OPERATOR_ROWS]
    ]
    return _table(("operator", "share", "µs per run", "calls per run", ""), rows)


def _table(head: Sequence[str], rows: Iterable[str]) -> str:
    return f"<table><tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>{''.join(rows)}</table>"


def _row(cells: Iterable[str], name: str) -> str:
    return f'<tr class="{name}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
