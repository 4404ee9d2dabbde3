"""``python -m bench.partitioning``: ``isochrone partition`` on two workers with an emulated link. See bench/README.md.

Needs root, Linux with /dev/net/tun, and ``ip``: the workers run in a network namespace of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.links.capacity import carried_bits_per_second
from bench.links.network import FAR, NEAR, EmulatedNetwork
from bench.links.settings import LinkSettings
from bench.partitioning.cells import CLOSE, CellResult, Cells, cells_of
from bench.partitioning.example import ExampleRun
from bench.partitioning.live import GOOD, MODEL, LiveRun, run_live
from bench.partitioning.models import MODELS, read, rows_of
from bench.partitioning.older_processor import older_processor
from bench.partitioning.tiers import Tier, worker
from bench.ports import free_ports
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch
from isochrone.optimize.partitioning.choices import choose
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.planning import Planner
from isochrone.optimize.partitioning.tiers import TierWorker
from isochrone.optimize.partitioning.writing import write_divisions_of

CELLS = ",".join(f"{round_trip}x{megabits}" for round_trip in (1, 5, 20, 50) for megabits in (1, 10, 100, 1000))
PARTS = ("cells", "example", "live")


def say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.partitioning", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cells", default=CELLS, help="milliseconds of a round trip x Mbit/s, with commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each cell")
    parser.add_argument("--requests", type=int, default=300, help="of the example")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second of the live part")
    parser.add_argument("--cuts", type=int, default=8, help="to measure, of each model")
    given = parser.parse_args()
    given.parts, given.models = given.parts.split(","), given.models.split(",")
    for flag, found, known in (("--parts", given.parts, PARTS), ("--models", given.models, MODELS)):
        if unknown := [each for each in found if each not in known]:
            parser.error(f"{flag}: expected some of {', '.join(known)}, given {unknown[0]}")
    try:
        given.cells = cells_of(given.cells)
    except ValueError:
        parser.error(f"--cells: expected such as 1x1000,50x1, given {given.cells}")
    return given


def summary(results: list[CellResult]) -> str:
    close = sum(each.is_close for each in results)
    return f"within {CLOSE - 1:.0%}: {close} of {len(results)} cells ({close / len(results):.0%})"


def table(results: list[CellResult]) -> str:
    lines = ["", "| model | round trip, ms | Mbit/s | chosen | ms | predicted | best | ms | ratio |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    return "\n".join([*lines, *(each.row() for each in results), ""])


def run(given: argparse.Namespace, network: EmulatedNetwork, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        slower = older_processor(directory)
        say(
            "edge: one thread, without AVX, FMA and later (its CPUID is trapped); core: one thread, the whole processor"
        )
    except OSError as error:
        slower = {}
        say(f"edge and core compute equally fast, so that no cut is worthwhile over a slow link: {error}")
    found["slower_edge"] = bool(slower)
    found["carried_mbit_per_second"] = carried = carried_bits_per_second(network) / 1e6
    say(f"the emulated link carries {carried:,.0f} Mbit/s here; settings above that are not reached")
    if "cells" in given.parts:
        with both_workers(directory / "cells", slower) as (edge, core):
            cells = Cells(network, edge, core, directory / "cells" / "written", given.seconds, given.cuts, say)
            results = [each for name in given.models for each in cells.of_model(name, given.cells)]
        found["cells"] = [each.record() for each in results]
        print(table(results))
        say(summary(results))
    if "example" in given.parts:
        with both_workers(directory / "example", slower) as (edge, core):
            example = ExampleRun(network, edge, core, directory / "example" / "written", say).run(given.requests)
        print("\n".join(example.lines()), flush=True)
        found["example"] = asdict(example)
    if "live" in given.parts:
        run = live(given, network, directory / "live", slower)
        print("\n".join(run.lines()), flush=True)
        found["live"] = run.record()
    return found


@contextmanager
def both_workers(directory: Path, slower: dict[str, str]) -> Iterator[tuple[Tier, Tier]]:
    """Without models; they can be loaded."""
    directory.mkdir()
    with (
        worker("edge", directory, directory / "edge", slower) as edge,
        worker("core", directory, directory / "core") as core,
    ):
        yield edge, core


def live(given: argparse.Namespace, network: EmulatedNetwork, directory: Path, slower: dict[str, str]) -> LiveRun:
    """Plans on the good link, serves all divisions, and changes the link under load."""
    model = read(MODELS[given.models[0]]())
    inputs = rows_of(model, 1)
    network.set(GOOD)
    with (
        both_workers(directory, slower) as (edge_tier, core_tier),
        TierWorker("edge", edge_tier.near) as edge,
        TierWorker("core", core_tier.near, core_tier.far) as core,
    ):
        plan = Planner(model, inputs, list(inputs), lambda line: None).plan(edge, core, [Encoding.PLAIN], given.cuts)
    option = choose([each.option for each in plan.options], plan.link).option
    # The chosen division serves first.
    kept = sorted(plan.options, key=lambda each: each.option is not option)
    written = directory / "written"
    http, metrics = free_ports(2)
    write_divisions_of(written, MODEL, model, plan, kept, [f"{FAR}:{http}"], 8)
    with (
        worker("core-serving", directory, written / "core", flags=(), port=http),
        worker("edge-serving", directory, written / "edge", slower, flags=(), metrics_port=metrics) as serving,
    ):
        say(f"live: {len(kept)} divisions, {kept[0].division} at first; {given.rate:g} requests a second")
        metrics_url = f"http://{NEAR}:{metrics}/metrics"
        return asyncio.run(run_live(network, serving.near, metrics_url, inputs, given.rate))


def main() -> None:
    given = arguments()
    # So that the processes that it started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells ignore in the background
    try:
        network = EmulatedNetwork(LinkSettings())
    except OSError as error:
        sys.exit(f"bench.partitioning: {error.strerror}")
    began = datetime.now(UTC)
    with scratch("partitioning") as directory, network:
        found = run(given, network, directory)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "partitioning.json"
    path.write_text(json.dumps({"date": began.isoformat(), "machine": describe(), **found}, indent=1))
    say(f"written to {path}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
