"""``python -m bench.partitioning``: ``isochrone partition`` on two workers with an emulated link. See bench/README.md.

Needs root, Linux with /dev/net/tun, and ``ip``: the workers run in a network namespace of their own.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.links.network import EmulatedNetwork
from bench.links.settings import LinkSettings
from bench.partitioning.cells import CLOSE, CellResult, Cells, cells_of
from bench.partitioning.models import MODELS
from bench.partitioning.older_processor import older_processor
from bench.partitioning.tiers import worker
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch

CELLS = ",".join(f"{round_trip}x{megabits}" for round_trip in (1, 5, 20, 50) for megabits in (1, 10, 100, 1000))
PARTS = ("cells",)


def say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.partitioning", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cells", default=CELLS, help="milliseconds of a round trip x Mbit/s, with commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each cell")
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
    if "cells" in given.parts:
        with (
            worker("edge", directory, directory / "edge", slower) as edge,
            worker("core", directory, directory / "core") as core,
        ):
            cells = Cells(network, edge, core, directory / "written", given.seconds, given.cuts, say)
            results = [each for name in given.models for each in cells.of_model(name, given.cells)]
        found["cells"] = [each.record() for each in results]
        say(summary(results))
    return found


def main() -> None:
    given = arguments()
    # So that the processes that it started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
