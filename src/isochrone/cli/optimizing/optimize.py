"""``isochrone optimize``: change how a model is computed until it meets a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isochrone.cli.console import make_console
from isochrone.cli.optimizing.interruptions import exits_on_signals
from isochrone.cli.optimizing.optimize_view import LiveFront, result_picture
from isochrone.cli.optimizing.quantities import milliseconds_of, share_of
from isochrone.errors import FlagError, IsochroneError
from isochrone.optimize.optimization import Result, Wanted, optimize
from isochrone.optimize.publishing.report import report_document, report_json, verdict
from isochrone.optimize.searching.candidate import Goal
from isochrone.optimize.trials.accuracy import Task

EPILOG = """
\b
Examples:
  isochrone optimize detector.onnx --budget 5ms --data calib.npz --output models/detector
  isochrone optimize detector --model-repository ./models --budget 5ms --data calib.npz --max-accuracy-drop 0.5%
  isochrone optimize models/detector/1/model.onnx --budget 800us --data calib.npz --labels y
  isochrone optimize detector --model-repository ./models --new-model detector_fast --budget 5ms --data calib.npz
  isochrone optimize detector.onnx --budget 5ms --data calib.npz --task classify --json

Tries graph changes, thread settings, runtimes, INT8, FP16, weights of few bits and pruning; measures each on this
machine as a worker would run it. One half of the data calibrates, the other is compared with the float model's outputs.
A model of a repository gets a new version, so runtime and threads stay those of its config.pbtxt; --new-model and
--output write a model with its own config.pbtxt. Reports are in .reports/ of the repository.
A worker that polls the repository serves the new version at once, unless the model's version_policy names versions.

The exit status is 0 if the budget is met, 1 if no candidate met it, and 2 if the command fails.
"""

_FAILED = 2

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("optimize", epilog=EPILOG)
def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.onnx|MODEL", help="An onnx file, or a model of --model-repository.", show_default=False
        ),
    ],
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="For the median of one run, such as 5ms, 800us.", show_default=False)
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="FILE.npz", help="Rows of every input, by the inputs' names.", show_default=False),
    ],
    max_accuracy_drop: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="Of top-1 accuracy or agreement if the task is classify, else the relative error; 0.5% or 0.005.",
        ),
    ] = "0.5%",
    labels: Annotated[str, typer.Option(metavar="ARRAY", help="The array of the data with the true classes.")] = "",
    task: Annotated[
        Task | None,
        typer.Option(
            metavar="classify|regress", help="How outputs are compared. [default: classify with --labels, else regress]"
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="ROWS", min=1, help="Rows of one run. [default: 1, or the model's fixed size]")
    ] = None,
    model_repository: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="The repository of MODEL; it gets a new version.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, help="Begin from it. [default: the newest that this command did not write]"
        ),
    ] = None,
    new_model: Annotated[
        str, typer.Option(metavar="NAME", help="Write a new model into the repository instead of a new version.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Write the model of a file as this new directory.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="cpu|gpu", help="Where a new model runs; gpu needs --new-model or --output.")
    ] = "cpu",
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="No trial begins later than this.")] = 120.0,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Of the division of the data.")] = 0,
    write_closest: Annotated[
        bool, typer.Option("--write-closest", help="Write the closest candidate if none meets the budget.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Change how a model is computed until one run takes at most the budget; write the result as a new version."""
    try:
        if device not in ("cpu", "gpu"):
            raise FlagError("--device", "cpu or gpu", device)
        wanted = Wanted(
            model,
            data,
            Goal(milliseconds_of("--budget", budget), share_of("--max-accuracy-drop", max_accuracy_drop)),
            repository=model_repository,
            version=version,
            output=output,
            new_model=new_model,
            labels=labels,
            task=task,
            batch=batch,
            seconds=seconds,
            on_gpu=device == "gpu",
            seed=seed,
            write_closest=write_closest,
        )
        with exits_on_signals(), LiveFront(wanted.goal) as live:
            result = optimize(wanted, live.show)
    except (IsochroneError, OSError) as error:
        _fail(str(error))
    if as_json:
        typer.echo(report_json(_document(result)))
    else:
        make_console().print(result_picture(result))
        typer.echo(verdict(result.report))
        compared, given = (result.report.data[name] for name in ("held_out_runs", "held_out_runs_given"))
        if compared < given:
            typer.echo(f"Compared on {compared} of {given} held-out runs; more --seconds allow more.")
        for text in (_written(result), result.note):
            if text:
                typer.echo(text)
    raise typer.Exit(0 if result.report.chosen is not None else 1)


def _document(result: Result) -> dict[str, object]:
    return {
        **report_document(result.report),
        "written": str(result.written) if result.written else None,
        "report": str(result.report_directory) if result.report_directory else None,
        "note": result.note,
    }


def _written(result: Result) -> str:
    if result.written is None:
        return ""
    return f"Written: {result.written}; report: {result.report_directory}/report.html"


def _fail(message: str) -> NoReturn:
    typer.secho(f"isochrone optimize: {message}", fg="red", err=True)
    raise typer.Exit(_FAILED)
