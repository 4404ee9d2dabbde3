"""The result of ``isochrone profile`` as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from isochrone.cli.console import counted, make_console, table
from isochrone.optimize.profiling.outcome import Outcome
from isochrone.optimize.profiling.results.recommended import Recommendation
from isochrone.optimize.profiling.results.report import disturbance
from isochrone.optimize.profiling.search.search import Point

_OPERATOR_ROWS = 8
_AFTER_WRITING = (
    "This changes the digests of all versions of the model. Workers that poll the repository load them again; in a"
    " fleet, a worker that loads a committed version from now on gets no traffic: roll the change out as a new version."
)
_FIGURES = ("rows/s", "run ms", "p99 ms", "latency ms", "memory MiB")


def summary(outcome: Outcome) -> str:
    """The recommendation in a sentence."""
    at, found = outcome.found.configuration, outcome.found
    figures = f"{found.rows_per_second:,.0f} rows/s with a latency of {found.value.latency_ns / 1e6:.3g} ms"
    what = f"{counted(at.instances, 'instance')} of {counted(at.threads, 'thread')}, batches of {at.batch}"
    if outcome.slo_ns is None:
        return f"Recommended: {what}: {figures}."
    slo = f"{outcome.slo_ns / 1e6:g} ms"
    if not outcome.keeps_slo:
        return f"No configuration keeps the SLO of {slo}. The fastest: {what}: {figures}."
    return f"Recommended for an SLO of {slo}: {what}: {figures}."


def print_outcome(
    outcome: Outcome, recommendation: Recommendation, *, asked: bool, written: bool, kept: Path | None
) -> None:
    console = make_console()
    title = f"{outcome.model} version {outcome.version}, backend {outcome.backend}, {outcome.cores} cores"
    measured = table(title, "batch", "threads", "instances", *_FIGURES, right=("batch", "threads", *_FIGURES))
    for point in sorted(outcome.points, key=lambda each: each.configuration):
        at = point.configuration
        cells = (*map(str, (at.batch, at.threads, at.instances)), *_cells(point))
        measured.add_row(*cells, style="bold green" if point == outcome.found else None)
    console.print(measured)
    for failure in outcome.failures:
        console.print(f"failed: {failure.configuration}: {failure.message}", markup=False)
    if outcome.operators:
        hottest = table("\nHottest operators", "operator", "share", "µs/run", "calls/run", right=("share", "µs/run"))
        for each in outcome.operators[:_OPERATOR_ROWS]:
            figures = f"{each.share:.1%}", f"{each.microseconds_per_run:,.1f}", f"{each.calls_per_run:g}"
            hottest.add_row(each.name, *figures)
        console.print(hottest)
    counts = f"{counted(len(outcome.points), 'configuration')} of {outcome.sweep_points} in {outcome.seconds:.1f} s"
    ended = "; the time ended before the search did: more --seconds may find more" if outcome.cut_short else ""
    typer.echo(f"\nMeasured {counts}{ended}.")
    if outcome.is_disturbed:
        typer.secho(disturbance(outcome), fg="yellow")
    typer.echo(summary(outcome))
    _print_change(recommendation, outcome.keeps_slo, asked=asked, written=written, kept=kept)


def _print_change(
    recommendation: Recommendation, keeps_slo: bool, *, asked: bool, written: bool, kept: Path | None
) -> None:
    if not recommendation.diff:
        typer.echo("config.pbtxt states this already.")
        return
    typer.echo(recommendation.diff, nl=False)
    if written:
        before = f"; the old one is {kept}" if kept is not None else ""
        typer.echo(f"Wrote {recommendation.path}{before}.")
        typer.echo(_AFTER_WRITING)
    elif asked:
        typer.echo("Nothing was written.")
    elif keeps_slo:
        typer.echo("Nothing was written: --write does.")


def profile_json(outcome: Outcome, recommendation: Recommendation, *, written: bool, kept: Path | None) -> str:
    return json.dumps(
        {
            "model": outcome.model,
            "version": outcome.version,
            "backend": outcome.backend,
            "cores": outcome.cores,
            "slo_ms": None if outcome.slo_ns is None else outcome.slo_ns / 1e6,
            "keeps_slo": outcome.keeps_slo,
            "recommended": _point(outcome.found),
            "points": [_point(point) for point in sorted(outcome.points, key=lambda each: each.configuration)],
            "failures": [{**_configuration(each.configuration), "message": each.message} for each in outcome.failures],
            "operators": [
                {
                    "operator": each.name,
                    "share": round(each.share, 6),
                    "microseconds_per_run": round(each.microseconds_per_run, 3),
                    "calls_per_run": round(each.calls_per_run, 3),
                }
                for each in outcome.operators
            ],
            "sweep_points": outcome.sweep_points,
            "seconds": round(outcome.seconds, 3),
            "cut_short": outcome.cut_short,
            "other_cores": round(outcome.other_cores, 3),
            "config": recommendation.text,
            "diff": recommendation.diff,
            "written": str(recommendation.path) if written else None,
            "kept": None if kept is None else str(kept),
        },
        indent=2,
        ensure_ascii=False,
    )


def _configuration(given: Any) -> dict[str, int]:
    return {"batch": given.batch, "threads": given.threads, "instances": given.instances}


def _point(point: Point) -> dict[str, object]:
    return {
        **_configuration(point.configuration),
        "rows_per_second": round(point.rows_per_second, 3),
        "run_ms": round(point.run_ns / 1e6, 6),
        "p99_ms": round(point.p99_ns / 1e6, 6),
        "latency_ms": round(point.value.latency_ns / 1e6, 6),
        "memory_bytes": point.memory_bytes,
        "runs": point.runs,
    }


def _cells(point: Point) -> tuple[str, ...]:
    memory = "–" if point.memory_bytes is None else f"{point.memory_bytes / 2**20:,.1f}"
    times = (f"{each / 1e6:.3f}" for each in (point.run_ns, point.p99_ns, point.value.latency_ns))
    return f"{point.rows_per_second:,.0f}", *times, memory
