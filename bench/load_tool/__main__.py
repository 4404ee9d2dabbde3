"""`python -m bench.load_tool`: are the closed-loop figures of `isochrone bench` those of other load tools?

Our worker, or real Triton, with a model that sleeps and one that returns its input. wrk and h2load (HTTP/1.1), h2load
(gRPC), perf_analyzer (both) and locust (HTTP/1.1) stand beside `isochrone bench` at the same number in flight. In every
round each tool measures each cell once, in an order that changes. A ratio is computed round by round. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.load_tool.cores import Cores, on_cores
from bench.load_tool.options import make_parser, markdown_head, markdown_row, spread, write_results
from bench.load_tool.rounds import orders
from bench.load_tool.serving import MODELS, SERVERS, server
from bench.load_tool.tools import OURS, Cell, Measured, Tool, ToolUnavailable, find_program, tools
from bench.worker.load import LoadFailed
from bench.worker.peers import PeerUnavailable
from bench.worker.peers.process import scratch

_TRANSPORTS = ("http", "grpc")

#: Tool → its figure of each round; None: it failed.
Figures = dict[str, list[Measured | None]]


def measure_cell(cell: Cell, beside: Mapping[str, Tool], rounds: int, cores: Cores) -> Figures:
    """Every tool once in each round. A round in which a tool fails has no figure of it."""
    figures: Figures = defaultdict(list)
    with on_cores(cores):
        # Warms the server, and gives the rate to tools that send a number of requests.
        rate = beside[OURS].measure(cell, 0.0).rate
        for order in orders(list(beside), rounds):
            for name in order:
                try:
                    figures[name].append(beside[name].measure(cell, rate))
                except LoadFailed as failure:
                    print(f"{cell.name}: {name}: {failure}", file=sys.stderr, flush=True)
                    figures[name].append(None)
    return dict(figures)


def show_cell(cell: Cell, figures: Figures) -> None:
    """One row of the table for each other tool."""
    for name, theirs in figures.items():
        pairs = [
            (other, mine) for other, mine in zip(theirs, figures[OURS], strict=True) if other and mine and name != OURS
        ]
        if not pairs:
            continue
        others, mine = ([each[number] for each in pairs] for number in (0, 1))
        print(
            markdown_row(
                cell.name,
                name,
                f"{statistics.median(each.rate for each in others):,.0f}",
                f"{statistics.median(each.rate for each in mine):,.0f}",
                spread([ours.rate / other.rate for other, ours in pairs]),
                _latencies(others, mine, "p50_ms"),
                _latencies(others, mine, "p99_ms"),
            ),
            flush=True,
        )


def _latencies(others: Sequence[Measured], mine: Sequence[Measured], field: str) -> str:
    """Medians of both; – where the other tool reports none."""
    columns = [[value for each in part if (value := getattr(each, field)) is not None] for part in (others, mine)]
    return " / ".join(f"{statistics.median(column):.3g}" if column else "–" for column in columns)


def _given() -> argparse.Namespace:
    parser = make_parser("bench.load_tool", __doc__)
    parser.add_argument("--seconds", type=float, help="of one figure (default: 3; --short: 1)")
    parser.add_argument("--rounds", type=int, help="figures of every cell (default: 5; --short: 3)")
    parser.add_argument("--servers", default="isochrone", help=f"of {','.join(SERVERS)} (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="(default: %(default)s)")
    parser.add_argument("--in-flight", help="(default: 1,8,32; --short: 8)")
    parser.add_argument("--transports", default=",".join(_TRANSPORTS), help="(default: %(default)s)")
    parser.add_argument("--tools", default="wrk,h2load,perf_analyzer,locust", help="(default: %(default)s)")
    parser.add_argument("--path", action="append", default=[], metavar="FOLDER", help="has tools; may be repeated")
    given = parser.parse_args()
    given.seconds = given.seconds or (1.0 if given.short else 3.0)
    given.rounds = given.rounds or (3 if given.short else 5)
    given.in_flight = given.in_flight or ("8" if given.short else "1,8,32")
    for flag, known in (("servers", SERVERS), ("models", MODELS), ("transports", _TRANSPORTS), ("tools", tools(1))):
        for name in getattr(given, flag).split(","):
            if name not in known:
                parser.error(f"--{flag}: expected some of {', '.join(known)}, given {name!r}")
    os.environ["PATH"] = ":".join([*map(os.path.abspath, given.path), os.environ["PATH"]])
    return given


def _usable_tools(names: Sequence[str], processes: int) -> dict[str, tuple[Tool, tuple[str, ...]]]:
    """Ours, and those of the names that are installed; it says which are not."""
    known = tools(processes)
    found = {OURS: known[OURS]}
    for name in names:
        try:
            find_program(name)
        except ToolUnavailable as failure:
            print(f"left out: {failure}", file=sys.stderr)
        else:
            found[name] = known[name]
    return found


def _cells(given: argparse.Namespace, peer: Any, directory: Path) -> list[Cell]:
    return [
        Cell(peer, MODELS[model], transport, int(in_flight), given.seconds, directory)
        for model in given.models.split(",")
        for transport in given.transports.split(",")
        for in_flight in given.in_flight.split(",")
    ]


def main() -> int:
    given = _given()
    usable = _usable_tools(given.tools.split(","), given.processes)
    results: dict[str, Any] = {"seconds": given.seconds, "rounds": given.rounds, "closed_loop": {}}
    columns = ("closed loop", "beside", "its requests/s", f"{OURS}'s", "ratio [lowest–highest]")
    print(markdown_head(*columns, "p50 ms, its / ours", "p99 ms, its / ours"), flush=True)
    failed = False
    for name in given.servers.split(","):
        try:
            with server(name, given.server_cores) as peer, scratch("load-tool-files") as directory:
                for cell in _cells(given, peer, directory):
                    beside = {tool: each for tool, (each, transports) in usable.items() if cell.transport in transports}
                    figures = measure_cell(cell, beside, given.rounds, given.tool_cores)
                    show_cell(cell, figures)
                    results["closed_loop"][cell.name] = {
                        tool: [None if each is None else vars(each) for each in rounds]
                        for tool, rounds in figures.items()
                    }
        except (PeerUnavailable, LoadFailed) as failure:
            print(f"{name}: {failure}", file=sys.stderr)
            failed = True
    write_results(given.output, "load_tool.json", results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
