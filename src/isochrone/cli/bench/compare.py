"""``isochrone bench compare`` and ``isochrone bench report``: measurements that were kept in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isochrone.bench.results.outcomes import read_run
from isochrone.cli.bench.failing import FAILED, failing
from isochrone.errors import FlagError

COMPARE_EPILOG = """
\b
Examples:
  isochrone bench compare before.npz after.npz
  isochrone bench compare before.npz after.npz --json

Each file is one that "isochrone bench run --output" wrote. The exit status is 0, or 1 if the second run is shown to be
worse in any figure, or 2 if the command fails or the runs cannot be compared: another load, other kinds of requests, or
a generator that was the bottleneck.
"""
REPORT_EPILOG = """
\b
Examples:
  isochrone bench report --to report.html run.npz
  isochrone bench report --to report.html before.npz after.npz

Several runs are compared with the first one.
"""


def compare_command(
    first: Annotated[Path, typer.Argument(metavar="A.npz", help="The run to compare with.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B.npz", help="The run that is judged.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two runs: differences with confidence intervals, and a verdict."""
    with failing("bench compare"):
        # Imported here: other commands of the group do not need them.
        from isochrone.bench.analysis.comparison import compare
        from isochrone.cli.bench.view import print_comparison, print_json

        comparison = compare(read_run(first), read_run(second))
    if as_json:
        print_json(comparison.as_json())
    else:
        names = (first.stem, second.stem)
        print_comparison(comparison, names if names[0] != names[1] else (str(first), str(second)))
    if not comparison.is_comparable:
        raise typer.Exit(FAILED)
    if comparison.is_regression:
        raise typer.Exit(1)


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN.npz...", help="The runs.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", help="The file to write.", show_default=False)],
) -> None:
    """Write an HTML report of runs, with plots."""
    with failing("bench report"):
        from isochrone.bench.report.page import write_report

        if to.is_dir():
            raise FlagError("--to", "a file", f"the directory '{to}'")
        write_report(to, [read_run(path) for path in runs])
    typer.echo(f"report: {to}")
