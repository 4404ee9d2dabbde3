"""``isochrone partition``: divides a model among a near and a far worker, where it is fastest or cheapest."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from isochrone.cli.api_client import DEFAULT_API, ApiOption, JsonOption, failing_as, print_json, token_fields
from isochrone.cli.api_tls import api_tls
from isochrone.cli.console import make_console, table
from isochrone.cli.optimizing.interruptions import exits_on_signals
from isochrone.cli.optimizing.quantities import bytes_of, milliseconds_of, share_of
from isochrone.cli.optimizing.tier_workers import workers_of_tiers
from isochrone.errors import FlagError
from isochrone.models.divisions import Link
from isochrone.models.repository.names import validate_model_name
from isochrone.optimize.partitioning.choices import Choice, Prices, choose
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.keeping import Candidate, kept
from isochrone.optimize.partitioning.model_file import free_rows, read_model, read_rows
from isochrone.optimize.partitioning.planning import Plan, Planned, Planner
from isochrone.optimize.partitioning.tiers import TierWorker
from isochrone.optimize.partitioning.writing import (
    check_target,
    core_bytes,
    edge_bytes,
    files_of,
    write_divisions_of,
    write_repositories,
)
from isochrone.protocol.compression import zstd

EPILOG = """
\b
Examples:
  isochrone partition detector.onnx --edge edge-1:8000 --core core-1:8000
  isochrone partition detector.onnx --tiers edge,core --deadline 20ms --write divided
  isochrone partition detector.onnx --edge edge-1:8000 --core core-1:8000 --write divided --keep-memory 500MiB
  isochrone partition detector.onnx --edge edge-1:8000 --core core-1:8000 --data rows.npz --max-error 1% --json

Stages are loaded into both workers under names of their own, timed, and unloaded; workers must run with
--model-control-mode explicit --allow-file-overrides; those of a fleet have the first, and get the second from
pools.NAME.arguments in fleet.yaml. The link is measured from the edge worker to the core worker. With
--write, DIR/edge and DIR/core are model repositories: on the edge, the model has its name, and sends to the core what
the core computes. With --keep-memory, all measured divisions that fit are written, and the edge worker moves between
them as the link and the load change. The exit status is 1 if no option meets the deadline; then nothing is written.
"""

#: Of the names of models that divisions add.
_LONGEST_SUFFIX = ".cut-999999-99-fp16-zstd_1"

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def partition(
    file: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The whole model.", show_default=False)],
    edge: Annotated[str, typer.Option(metavar="HOST:PORT", help="A worker near the callers (HTTP).")] = "",
    core: Annotated[str, typer.Option(metavar="HOST:PORT", help="A worker far from them (HTTP).")] = "",
    tiers: Annotated[
        str, typer.Option(metavar="NEAR,FAR", help="Tiers of a running fleet, instead of --edge and --core.")
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The fleet's store, for --tiers; an etcd password in ISOCHRONE_STORE_PASSWORD.",
            show_default="as the API shows it",
        ),
    ] = "",
    endpoints: Annotated[
        str,
        typer.Option(metavar="HOST:PORT,…", help="How the edge reaches the core.", show_default="the core worker"),
    ] = "",
    deadline: Annotated[str, typer.Option(metavar="TIME", help="Of one request, such as 20ms.")] = "",
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Rows of inputs by name.", show_default="made rows")
    ] = None,
    max_error: Annotated[
        str, typer.Option(metavar="SHARE", help="Relative error of the outputs that encodings may cause.")
    ] = "0%",
    edge_price: Annotated[float, typer.Option(min=0, help="Of a second on the edge.")] = 0.0,
    core_price: Annotated[float, typer.Option(min=0, help="Of a second in the core.")] = 0.0,
    gigabyte_price: Annotated[float, typer.Option(min=0, help="Of a gigabyte over the link.")] = 0.0,
    cuts: Annotated[int, typer.Option(min=1, max=100, help="Cuts to measure, at most.")] = 12,
    name: Annotated[str, typer.Option(help="Of the model.", show_default="the file's name")] = "",
    max_batch_size: Annotated[int, typer.Option(min=0, help="Of the written models.")] = 8,
    write: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the repositories of both tiers.")] = None,
    keep_memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Write all divisions that fit into so much memory of each tier, with --write."
        ),
    ] = "",
    fleet_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --tiers: the fleet's key, so that no forged record of a worker is believed.",
            show_default="none: records are not checked",
        ),
    ] = None,
    api: ApiOption = DEFAULT_API,
    as_json: JsonOption = False,
) -> None:
    """Divide a model among a near and a far worker."""
    with failing_as("partition"), exits_on_signals(), ExitStack() as stack:
        limit = milliseconds_of("--deadline", deadline) / 1e3 if deadline else None
        most_error = share_of("--max-error", max_error)
        keep = bytes_of("--keep-memory", keep_memory) if keep_memory else 0
        if keep and write is None:
            raise FlagError("--keep-memory", "--write DIR beside it", "none")
        if write is not None:
            check_target(write)
        called = name or file.stem
        for each in (called, f"{called}{_LONGEST_SUFFIX if keep else '_1'}"):
            validate_model_name(each)
        model = read_model(file)
        rows = read_rows(model, data)
        workers = [stack.enter_context(each) for each in _workers(edge, core, tiers, api, store, fleet_key)]
        far = core or workers[1].url.removeprefix("http://")
        reached = [part.strip() for part in (endpoints or far).split(",") if part.strip()]
        is_tls = all(each.startswith(("https://", "grpcs://")) for each in reached)
        files = workers[1].certificates if is_tls else {}
        planner = Planner(model, rows, free_rows(model), lambda line: typer.echo(line, err=True))
        encodings = list(Encoding) if most_error else [Encoding.PLAIN]
        if not zstd.is_installed():
            typer.echo(f"zstd is not considered: install here, and on both workers, {zstd.PACKAGE}", err=True)
        elif data is None:
            typer.echo("zstd is measured on made rows: real ones, with --data, may compress otherwise", err=True)
        plan = planner.plan(workers[0], workers[1], encodings, cuts, zstd.is_installed())
        prices = Prices(edge_price, core_price, gigabyte_price)
        choice = choose([each.option for each in plan.options], plan.link, limit, prices, most_error)
        stay: list[Planned] = []
        if write is not None and choice.meets:
            (chosen,) = [each for each in plan.options if each.option is choice.option]
            if keep:
                stay = _kept(model, plan, chosen, most_error, keep)
                write_divisions_of(write, called, model, plan, stay, reached, max_batch_size, files)
            else:
                write_repositories(write, called, model, plan, chosen, reached, max_batch_size, files)
        if as_json:
            print_json(_record(plan, choice, most_error, write if choice.meets else None, stay))
        else:
            make_console().print(_picture(plan, choice, most_error, write if choice.meets else None, stay))
        if not choice.meets:
            raise typer.Exit(1)


def _workers(edge: str, core: str, tiers: str, api: str, store: str, key: Path | None = None) -> list[TierWorker]:
    if store and not tiers:
        raise FlagError("--store", "--tiers NEAR,FAR beside it", "none")
    if key is not None and not tiers:
        raise FlagError("--fleet-key", "--tiers NEAR,FAR beside it", "none")
    if tiers:
        if edge or core:
            raise FlagError("--tiers", "no --edge or --core beside it", f"--edge '{edge}' --core '{core}'")
        found = zip(("edge", "core"), workers_of_tiers(tiers, api, store, key), strict=True)
        tls = api_tls()
        # Every machine of a fleet has its files at the same place: the near worker calls the far one with them.
        named = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
        files = {name: os.path.abspath(path) for name, path in named.items() if path}
        return [
            TierWorker(
                tier,
                worker.url,
                token=worker.token,
                pool=worker.pool,
                fields=token_fields(),
                transport=tls.transport(),
                certificates=files if worker.url.startswith("https://") else None,
            )
            for tier, worker in found
        ]
    for flag, given in (("--edge", edge), ("--core", core)):
        if not given:
            raise FlagError(flag, "the address of a worker, or --tiers NEAR,FAR of a running fleet", "nothing")
    return [TierWorker(tier, url, transport=api_tls(url).transport()) for tier, url in (("edge", edge), ("core", core))]


def _kept(model: Any, plan: Plan, chosen: Planned, most_error: float, most_bytes: int) -> list[Planned]:
    """The divisions to write, the chosen one first."""
    allowed: dict[str, Planned] = {}
    for each in plan.options:
        # The whole model in the core is one division, with zstd or without: the faster one.
        other = allowed.get(each.division)
        if each.option.error <= most_error and (other is None or _is_faster(each, other, plan, chosen)):
            allowed[each.division] = each
    candidates = [
        Candidate(
            name,
            each.option.late_seconds(plan.link),
            edge_bytes(each, model),
            core_bytes(each, model),
            files_of(each),
        )
        for name, each in allowed.items()
    ]
    return [allowed[name] for name in kept(candidates, chosen.division, most_bytes)]


def _is_faster(one: Planned, other: Planned, plan: Plan, chosen: Planned) -> bool:
    if chosen in (one, other):
        return one is chosen
    return one.option.late_seconds(plan.link) < other.option.late_seconds(plan.link)


def _record(
    plan: Plan, choice: Choice, most_error: float, written: Path | None, stay: Sequence[Planned]
) -> dict[str, Any]:
    link = plan.link
    return {
        "link": {
            "round_trip_ms": link.round_trip * 1e3,
            # JSON has no infinity: a link that is too fast to be measured.
            "mbit_per_second": link.bytes_per_second * 8 / 1e6 if math.isfinite(link.bytes_per_second) else None,
            "jitter_ms": link.jitter * 1e3,
        },
        "options": [
            {
                "name": option.name,
                "division": planned.division,
                "compression": planned.compression or None,
                "edge_ms": option.edge_seconds * 1e3,
                "core_ms": option.core_seconds * 1e3,
                "sent_bytes": option.sent_bytes,
                "received_bytes": option.received_bytes,
                "total_ms": option.seconds(link) * 1e3,
                "late_ms": option.late_seconds(link) * 1e3,
                "error": option.error,
                "allowed": option.error <= most_error,
            }
            for planned, option in ((each, each.option) for each in plan.options)
        ],
        "chosen": choice.option.name,
        "meets_deadline": choice.meets,
        "reason": choice.reason,
        "written": None if written is None else str(written),
        "kept": [each.division for each in stay],
    }


def _picture(
    plan: Plan, choice: Choice, most_error: float, written: Path | None, stay: Sequence[Planned]
) -> RenderableType:
    columns = ("computed on", "edge ms", "link ms", "core ms", "total ms", "late ms", "bytes", "error")
    shown = table(_link_text(plan.link), *columns, right=columns[1:])
    for planned in plan.options:
        option = planned.option
        style = "green" if option is choice.option else "dim" if option.error > most_error else ""
        total = option.seconds(plan.link)
        crossing = total - option.edge_seconds - option.core_seconds
        times = (option.edge_seconds, crossing, option.core_seconds, total, option.late_seconds(plan.link))
        shown.add_row(
            option.name,
            *(f"{each * 1e3:.2f}" for each in times),
            f"{option.sent_bytes + option.received_bytes:,}",
            f"{option.error:.3%}" if option.error else "–",
            style=style,
        )
    parts: list[RenderableType] = [shown, Text(f"{choice.option.name}: {choice.reason}", "" if choice.meets else "red")]
    if written is not None:
        parts.append(Text(f"written: {written}/edge and {written}/core"))
    if stay:
        parts.append(Text(f"divisions, the first one serves at first: {', '.join(each.division for each in stay)}"))
    return Group(*parts)


def _link_text(link: Link) -> str:
    rate = (
        f"{link.bytes_per_second * 8 / 1e6:,.1f} Mbit/s" if math.isfinite(link.bytes_per_second) else "too fast to tell"
    )
    return f"link: {link.round_trip * 1e3:.2f} ms, {rate}, jitter {link.jitter * 1e3:.2f} ms"
