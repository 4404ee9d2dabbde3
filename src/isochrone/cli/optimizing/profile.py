"""``isochrone profile``: measure a model under several configurations and recommend one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isochrone.cli.optimizing.interruptions import exits_on_signals
from isochrone.cli.optimizing.profile_view import print_outcome, profile_json, summary
from isochrone.cli.optimizing.quantities import milliseconds_of
from isochrone.errors import FlagError, IsochroneError
from isochrone.optimize.profiling.outcome import Outcome
from isochrone.optimize.profiling.profile import Report, profile, read_model
from isochrone.optimize.profiling.results.recommended import Recommendation, recommend, write
from isochrone.optimize.profiling.results.report import report_page, write_report
from isochrone.optimize.profiling.running.inputs import parse_shapes

EPILOG = """
\b
Examples:
  isochrone profile detector --model-repository ./models
  isochrone profile detector --model-repository ./models --slo 5ms --write
  isochrone profile encoder --model-repository ./models --shape tokens:128 --report encoder.html
  isochrone profile detector --model-repository ./models --version 3 --seconds 20 --json

Loads the model as a worker does, in a process of its own, and measures it with more rows, threads and instances until
the best configuration is known: the highest throughput whose latency keeps the SLO, or without one the lowest latency
with nearly the highest throughput. Run it on the machine that will serve, while nothing else runs there. Without
--write nothing is changed. docs/optimizing.md explains the figures.
A written config.pbtxt changes the digests of all versions of the model: workers that poll load them again, and a fleet
needs a rollout.

The exit status is 0 with a recommendation, 1 if no configuration keeps the SLO, and 2 if the command fails; with 1 and
2 nothing is written.
"""

_FAILED = 2

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("profile", epilog=EPILOG)
def profile_command(
    model: Annotated[str, typer.Argument(help="The model's name.", show_default=False)],
    repository: Annotated[
        Path,
        typer.Option("--model-repository", metavar="DIRECTORY", help="The directory of the model.", show_default=False),
    ],
    version: Annotated[
        int | None, typer.Option(help="The model's version.", min=1, show_default="the newest that is served")
    ] = None,
    slo: Annotated[
        str,
        typer.Option(metavar="DURATION", help="The latency to keep, such as 5ms or 800us.", show_default="none"),
    ] = "",
    seconds: Annotated[float, typer.Option(help="The time for measurements.", min=0.1)] = 60.0,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="NAME:SIZES", help="The shape of an input with variable dims, without the batch."
        ),
    ] = None,
    write_config: Annotated[
        bool, typer.Option("--write", help="Write the recommended config.pbtxt; the old one is kept beside it.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML report with plots.", show_default="none")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure latency, memory and operators of a model, and recommend instances, threads and batches for an SLO."""
    try:
        with exits_on_signals():
            slo_ns = _slo_ns(slo)
            sizes = parse_shapes(shapes or [])
            _check_report(report)
            description, number = read_model(repository, model, version)
            with _progress() as line:
                outcome = profile(
                    repository, description, number, slo_ns=slo_ns, seconds=seconds, shapes=sizes, report=line
                )
            recommendation = recommend(description, outcome.found.configuration, _reason(outcome))
            if report is not None:
                write_report(report, report_page(outcome, summary(outcome), recommendation.diff))
            written, kept = _write(outcome, recommendation) if write_config else (False, None)
    except IsochroneError as error:
        typer.secho(f"isochrone profile: {error}", fg="red", err=True)
        raise typer.Exit(_FAILED) from None
    if as_json:
        typer.echo(profile_json(outcome, recommendation, written=written, kept=kept))
    else:
        print_outcome(outcome, recommendation, asked=write_config, written=written, kept=kept)
        if report is not None:
            typer.echo(f"report: {report}")
    if not outcome.keeps_slo:
        raise typer.Exit(1)


def _slo_ns(text: str) -> float | None:
    return milliseconds_of("--slo", text) * 1e6 if text else None


def _check_report(path: Path | None) -> None:
    """Before minutes of measurements, not after them."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise FlagError("--report", "a file in a directory that can be written", f"'{path}'")


def _reason(outcome: Outcome) -> str:
    today = datetime.now(UTC).date().isoformat()
    goal = "without an SLO" if outcome.slo_ns is None else f"for an SLO of {outcome.slo_ns / 1e6:g} ms"
    return f"Written by isochrone profile on {today}, {goal}, from version {outcome.version} on {outcome.cores} cores."


def _write(outcome: Outcome, recommendation: Recommendation) -> tuple[bool, Path | None]:
    """Whether a file was written, and where the old one is."""
    if not outcome.keeps_slo or not recommendation.diff:
        return False, None
    return True, write(recommendation)


@contextmanager
def _progress() -> Iterator[Report]:
    """A status on a terminal, else a line for each measurement, apart from the result."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda text: typer.echo(text, err=True)
        return
    with console.status("loading the model") as status:
        yield lambda text: status.update(text)
