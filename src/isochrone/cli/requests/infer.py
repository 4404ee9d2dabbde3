"""``isochrone infer``: send one request and show its outputs and the stages of its latency."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from isochrone.cli.last_fleet import LastFleet, last_fleet
from isochrone.cli.requests.inputs import arrange, split_inputs
from isochrone.cli.requests.opening import open_target
from isochrone.cli.requests.target import (
    Answer,
    Certificates,
    Question,
    RequestFailed,
    Target,
    Unreachable,
)
from isochrone.cli.requests.waterfall import percentile, render, stages_of
from isochrone.errors import IsochroneError
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.protocol.tensors.json_values import to_json

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor

EPILOG = """
\b
Examples:
  isochrone infer detector
  isochrone infer detector --batch 8 --repeat 1000
  isochrone infer detector --url grpc://localhost:8001 --timeout-ms 10
  isochrone infer detector --url https://inference.example:8000 --ca ca.pem
  isochrone infer detector --input features=@frame.npy --output scores --json
  isochrone infer tracker --input measured=[1,2] --parameter sequence_id=7 --parameter sequence_start=true

Without --input, inputs are random and shaped as the model's metadata says. JSON may leave out the batch dimension.
"""

#: Where a worker or a gateway listens unless it is configured otherwise.
_USUAL_URL = "http://localhost:8000"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def infer(
    model: Annotated[str, typer.Argument(help="The model's name.", show_default=False)],
    url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="http://HOST:PORT, or https://, grpc://, grpcs:// in place of http://.",
            show_default=f"the gateway of the fleet last started here with 'isochrone up', else {_USUAL_URL}",
        ),
    ] = "",
    version: Annotated[str, typer.Option(help="The model's version.", show_default="the server's choice")] = "",
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=VALUE", help="VALUE is JSON, @FILE.json or @FILE.npy. May be repeated."),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Random data for inputs that are not given.")] = False,
    batch: Annotated[int, typer.Option(help="Rows of random inputs (their first dimension, where free).", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random data.", min=0)] = 0,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", metavar="NAME", help="An output to return. [default: all]")
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="KEY=VALUE", help="A request parameter, such as priority=1."),
    ] = None,
    timeout_ms: Annotated[
        float | None, typer.Option(help="The request's deadline, kept by the server.", min=0.001, show_default="none")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Send it this many times, one after the other.", min=1)] = 1,
    ca: Annotated[
        Path | None,
        typer.Option(help="TLS: PEM certificate of the authority to trust.", show_default="the system's authorities"),
    ] = None,
    cert: Annotated[Path | None, typer.Option(help="TLS: PEM client certificate, for servers that ask for it.")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS: PEM key of the client certificate.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send one request to a server and print the outputs and the time waterfall."""
    try:
        target = _open(url, timeout_ms, Certificates(ca, cert, key))
        try:
            given = split_inputs(inputs or [])
            if batch > 1 and given and not random:
                raise RequestFailed("--batch is for random inputs; with --input, the data's own shape counts")
            declared = target.inputs(model, version)
            tensors = arrange(model, declared, given, fill=random or not given, rows=batch, seed=seed)
            wanted = tuple(outputs or ())
            question = Question(model, version, tensors, wanted, _parameters(parameters or []), timeout_ms)
            answers = [target.infer(question) for _ in range(repeat)]
        except RequestFailed as error:
            raise _explained(error, target) from None
        finally:
            target.close()
        if as_json:
            typer.echo(json.dumps(_as_json(model, answers)))
        else:
            _print(model, answers)
    except (RequestFailed, IsochroneError) as error:
        typer.secho(f"isochrone infer: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


def _open(url: str, timeout_ms: float | None, certificates: Certificates) -> Target:
    """``url`` "": the gateway of the fleet that was started last on this machine, else the default address."""
    last = last_fleet() if not url else None
    if last is None or not last.gateway:
        return open_target(url or _USUAL_URL, timeout_ms, certificates)
    try:
        return open_target(last.gateway, timeout_ms, _of_last(last, certificates))
    except Unreachable as error:
        raise RequestFailed(f"{error}; that is the gateway of fleet {last.name}, the last one started here") from None


def _of_last(last: LastFleet, given: Certificates) -> Certificates:
    """The fleet's own certificates, where none are given."""
    if given.ca is not None or not last.ca or not last.gateway.startswith("https://"):
        return given
    own = (Path(last.cert), Path(last.key)) if os.access(last.key, os.R_OK) else (None, None)
    return Certificates(Path(last.ca), given.cert or own[0], given.key or own[1])


def _explained(error: RequestFailed, target: Target) -> RequestFailed:
    """The same error with a hint for the command line."""
    if error.unknown_model and "' version " not in str(error):
        names = ", ".join(target.model_names()) or "no model that is ready"
        return RequestFailed(f"{error}; the server has {names}")
    if "correlation ID" in str(error):
        return RequestFailed(f"{error}; name a sequence: --parameter sequence_id=1 --parameter sequence_start=true")
    return error


def _parameters(words: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` words by key; values are JSON if they parse as JSON, else text."""
    parameters: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RequestFailed(f"--parameter: expected KEY=VALUE, given '{word}'")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if not isinstance(value, bool | int | float | str):
            raise RequestFailed(f"--parameter {key}: expected a number, true, false or text, given '{text}'")
        parameters[key] = value
    return parameters


def _summary(answers: list[Answer]) -> tuple[float, dict[str, float]]:
    """The median latency: of several requests, stage by stage, so that the parts may not add up to the total."""
    total = statistics.median(answer.total_ms for answer in answers)
    every = [stages_of(answer.total_ms, answer.stages) for answer in answers]
    return total, {stage: statistics.median(each.get(stage, 0.0) for each in every) for stage in every[0]}


def _percentiles(answers: list[Answer]) -> dict[str, float]:
    ordered = sorted(answer.total_ms for answer in answers)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {**{name: percentile(ordered, share) for name, share in shares.items()}, "max": ordered[-1]}


def _as_json(model: str, answers: list[Answer]) -> dict[str, Any]:
    total, stages = _summary(answers)
    last = answers[-1]
    form: dict[str, Any] = {
        "model": model,
        "version": last.version,
        "outputs": [
            {
                "name": name,
                "datatype": name_of(array.dtype),
                "shape": list(array.shape),
                "data": _plain(array),
            }
            for name, array in last.outputs.items()
        ],
        "timing_ms": {"total": round(total, 6), **{stage: round(each, 6) for stage, each in stages.items()}},
    }
    if len(answers) > 1:
        form["requests"] = len(answers)
        form["percentiles_ms"] = {name: round(value, 6) for name, value in _percentiles(answers).items()}
    return form


def _plain(array: Tensor) -> list[Any]:
    # The protocol's JSON has no BF16 and no NaN; the output for people has.
    if array.dtype.kind == "O":
        return [each.decode("utf-8", "replace") for each in array.ravel().tolist()]
    wide = array.astype(np.float32) if name_of(array.dtype) in ("BF16", "FP16") else array
    if wide.dtype.kind == "f" and not np.isfinite(wide).all():
        return [each if np.isfinite(each) else str(each) for each in wide.ravel().tolist()]
    return list(to_json(wide, name_of(wide.dtype)))


def _print(model: str, answers: list[Answer]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    last = answers[-1]
    console.print(f"[bold]{model}[/bold] version {last.version}")
    for name, array in last.outputs.items():
        shown = np.array2string(array, precision=6, threshold=16, edgeitems=3, separator=", ", max_line_width=110)
        console.print(f"{name} {name_of(array.dtype)} {list(array.shape)}", style="cyan", markup=False)
        console.print("  " + shown.replace("\n", "\n  "), markup=False)
    total, stages = _summary(answers)
    console.print()
    title = "time of the request" if len(answers) == 1 else f"median of {len(answers)} requests, one at a time"
    console.print(render(total, stages, title))
    if len(answers) > 1:
        figures = "  ".join(f"{name} {value:.3f}" for name, value in _percentiles(answers).items())
        console.print(f"\nms  {figures}", markup=False)
    if not stages:
        console.print("The server reported no stages: it is not Isochrone, or an older release.", style="dim")
