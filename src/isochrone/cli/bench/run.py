"""``isochrone bench run``: send a workload to a server, and show what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isochrone.cli.bench.failing import FAILED, failing
from isochrone.cli.console import plain
from isochrone.errors import FlagError

if TYPE_CHECKING:
    from isochrone.cli.bench.session import Finished

RUN_EPILOG = """
\b
Examples:
  isochrone bench http://localhost:8000 --model detector --rate 500 --seconds 30
  isochrone bench http://localhost:8000 --model detector --concurrency 32
  isochrone bench grpc://localhost:8001 --model detector --rate 500 --arrivals bursts --deadline-ms 20
  isochrone bench http://localhost:8000 --model detector --slo 'p99<20ms' --ramp
  isochrone bench http://localhost:8000 --mix mix.yaml --rate 2000 --processes 4 --report report.html
  isochrone bench http://localhost:8000/v1 --protocol openai --model storyteller --stream --rate 5

With --rate the loop is open: requests are sent at instants that do not depend on the server, and each latency counts
from the instant at which the request was intended. With --concurrency the loop is closed: a request is sent when the
one before it has ended. Ctrl-C ends a run early; what was measured until then is shown.
ISOCHRONE_API_TOKEN goes along with each request, unless --header has another authorization. docs/bench.md explains the
figures, and what they do not prove.

The exit status is 0, or 1 if --slo is not met, or 2 if the command fails.
"""

#: The lowest rate of a ramp, unless --rate names another.
_LOWEST_RATE = 50.0


def run_command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The server: http://HOST:PORT, https://…, grpc://… or grpcs://….", show_default=False
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The model.", show_default=False)] = None,
    version: Annotated[str | None, typer.Option(help="Its version.", show_default="the server's choice")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Open loop: requests per second.", min=1e-6, show_default=False)
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="Open loop: constant, poisson, bursts or trace.", show_default="poisson")
    ] = "",
    on_seconds: Annotated[
        float | None, typer.Option(help="Bursts: seconds with requests.", min=1e-3, show_default="1")
    ] = None,
    off_seconds: Annotated[
        float | None, typer.Option(help="Bursts: seconds without.", min=1e-3, show_default="1")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Open loop: recorded arrivals in seconds, one a line.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: requests in flight.", min=1, show_default=False)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Measured time.", min=0.01, show_default="10")] = None,
    warmup_seconds: Annotated[
        float | None, typer.Option(help="Time before it that does not count.", min=0, show_default="2")
    ] = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option(help="Sent with each request; later answers are late.", min=1e-3, show_default="none"),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Priority class.", min=1, show_default="none")] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Requests of one sequence, for stateful models.", min=1, show_default="none")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Ask for answers in pieces; shows the time to the first token.")
    ] = False,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Inputs as JSON or .npz.", show_default="random")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of random inputs.", min=1, show_default="1")] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:SIZES", help="Shape of a random input, without the batch. May be repeated."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text generation: the prompt.", show_default="a short one")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Text generation: most tokens of an answer.", min=1, show_default="64")
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="OpenAI's API: completions in place of chat completions.")
    ] = False,
    mix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Several kinds of requests, as YAML or JSON.", show_default="one kind"),
    ] = None,
    protocol: Annotated[str, typer.Option(help="http, grpc or openai.", show_default="by the URL")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="A header of each request. May be repeated.")
    ] = None,
    slo: Annotated[
        str, typer.Option(metavar="OBJECTIVES", help="Such as 'p99<20ms,errors<0.1%'.", show_default="none")
    ] = "",
    ramp: Annotated[
        bool, typer.Option("--ramp", help="Find the highest rate that keeps --slo, from --rate on.")
    ] = False,
    max_rate: Annotated[float, typer.Option(help="The highest rate of a ramp.", min=1e-6)] = 100_000.0,
    tolerance: Annotated[float, typer.Option(help="A ramp ends at this relative width of the interval.")] = 0.02,
    processes: Annotated[int, typer.Option(help="Generator processes.", min=1)] = 1,
    max_in_flight: Annotated[
        int, typer.Option(help="Open loop: most requests in flight; others wait, which counts.", min=1)
    ] = 1024,
    connections: Annotated[
        int,
        typer.Option(help="Most connections.", min=0, show_default="HTTP: one a request in flight; gRPC: one for 32"),
    ] = 0,
    timeout_seconds: Annotated[
        float, typer.Option(help="A request without an answer after this has failed.", min=0.01)
    ] = 30.0,
    seed: Annotated[int | None, typer.Option(help="Of arrivals and random inputs.", min=0, show_default="0")] = None,
    ca: Annotated[Path | None, typer.Option(help="TLS: authority to trust.", show_default="the system's")] = None,
    cert: Annotated[Path | None, typer.Option(help="TLS: client certificate.", show_default="none")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS: its key.", show_default="none")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write an HTML report.", show_default="none")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="RUN.npz", help="Keep the run, for compare.", show_default="none")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send requests to a server of the Open Inference Protocol or OpenAI's API, and measure the answers."""
    kind: dict[str, Any] = {
        "model": model,
        "version": version,
        "deadline_ms": deadline_ms,
        "priority": priority,
        "sequence": sequence,
        "stream": True if stream else None,
        "inputs": None if inputs is None else str(inputs),
        "rows": rows,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "chat": False if completions else None,
    }
    with failing("bench"):
        # Imported here: the help does not need them.
        from isochrone.cli.bench.session import Session, measured
        from isochrone.cli.bench.workload_flags import Flags, workload_of

        if shape:
            from isochrone.optimize.profiling.running.inputs import parse_shapes

            kind["shapes"] = parse_shapes(shape)
        flags = Flags(
            url=url,
            protocol=protocol,
            mix=mix,
            kind={name: value for name, value in kind.items() if value is not None},
            rate=rate,
            arrivals=arrivals,
            on_seconds=on_seconds,
            off_seconds=off_seconds,
            trace=trace,
            concurrency=concurrency,
            seconds=seconds,
            warmup_seconds=warmup_seconds,
            timeout_seconds=timeout_seconds,
            max_in_flight=max_in_flight,
            connections=connections,
            headers=header or (),
            seed=seed,
            ca=ca,
            cert=cert,
            key=key,
        )
        workload = workload_of(flags, default_rate=_LOWEST_RATE if ramp else None)
        for flag, path in (("--report", report), ("--output", output)):
            _check_file(flag, path)
        finished = measured(Session(workload, processes, slo, ramp, max_rate, tolerance), quiet=as_json)
        _write(finished, report, output)
        finished.show(as_json=as_json)
    if finished.signal is not None:
        raise typer.Exit(128 + finished.signal)
    if finished.failure:
        typer.secho(plain(f"isochrone bench: {finished.failure}"), fg="red", err=True)
        raise typer.Exit(FAILED)
    if not finished.keeps_slo:
        raise typer.Exit(1)


def _check_file(flag: str, path: Path | None) -> None:
    """Before minutes of measurements, not after them."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise FlagError(flag, "a file in a directory that can be written", f"'{path}'")


def _write(finished: Finished, report: Path | None, output: Path | None) -> None:
    from isochrone.bench.results.outcomes import write_run

    if output is not None:
        try:
            write_run(output, finished.best)
        except OSError as error:
            raise FlagError("--output", "a file that can be written", f"'{output}': {error.strerror}") from None
    if report is not None:
        from isochrone.bench.report.page import write_report

        write_report(report, finished.runs)
