"""`python -m bench.worker.python_models`: the same model.py under Triton and under our worker, in turns.

`affine` is a few lines of numpy, `affine_batched` the same with dynamic batching, `caller` calls `affine` (business
logic scripting). Triton runs each in a process of its own; we run them inside the worker, and `isolated` in a process
of their own too. Every request has an id.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.realistic.cells import GRPC, HTTP, Cell
from bench.realistic.load import measure
from bench.realistic.models import WIDTH
from bench.realistic.servers import serve
from bench.worker.load import Figure, LoadFailed
from bench.worker.machine import RESULTS, describe
from bench.worker.models import INPUT, OUTPUT
from bench.worker.peers import Peer
from bench.worker.peers.process import SERVERS, environment_python, scratch
from bench.worker.peers.triton import serve_repository

MODELS = ("affine", "affine_batched", "caller")
_SOURCES = {"affine": "triton_affine.py", "affine_batched": "triton_affine.py", "caller": "triton_caller.py"}
_ISOLATED = "_isolated"
_ISOLATION = 'parameters { key: "isolation" value { string_value: "process" } }\n'
IN_PROCESS, ISOLATED, TRITON = "isochrone", "isolated", "triton"


def write_models(directory: Path, *, isolated: bool) -> Path:
    """The repository; ``isolated``: with a second copy of each model that runs in a process of its own."""
    for name in MODELS:
        _write(directory / name, name, "")
        if isolated:
            _write(directory / (name + _ISOLATED), name, _ISOLATION)
    return directory


def _write(directory: Path, name: str, more: str) -> None:
    (directory / "1").mkdir(parents=True)
    shutil.copyfile(SERVERS / _SOURCES[name], directory / "1" / "model.py")
    batching = "dynamic_batching { }\n" if name.endswith("_batched") else ""
    (directory / "config.pbtxt").write_text(
        f'name: "{directory.name}"\nbackend: "python"\nmax_batch_size: 32\n'
        f'input [ {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]\n'
        f'output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]\n{batching}{more}'
    )


def turns(peers: dict[str, Peer], number: int) -> Iterator[tuple[str, Peer, str]]:
    """Who is measured, in an order that changes each round, and what its models' names end in."""
    every = [(TRITON, peers[TRITON], ""), (IN_PROCESS, peers[IN_PROCESS], ""), (ISOLATED, peers[IN_PROCESS], _ISOLATED)]
    turn = number % len(every)
    yield from every[turn:] + every[:turn]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(rounds: int, seconds: float, in_flight: list[int]) -> dict[str, dict[str, list[Figure]]]:
    found: dict[str, dict[str, list[Figure]]] = defaultdict(lambda: defaultdict(list))
    with scratch("python-models") as directory, ExitStack() as stack:
        ours = write_models(directory / "ours", isolated=True)
        theirs = write_models(directory / "theirs", isolated=False)
        python = environment_python("")
        peers = {
            IN_PROCESS: stack.enter_context(serve(ours, directory)),
            TRITON: stack.enter_context(serve_repository(theirs, python, directory, MODELS)),
        }
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for model in MODELS:
                for transport in (HTTP, GRPC):
                    for many in in_flight:
                        cell = Cell("ids", model, transport, many)
                        for name, peer, suffix in turns(peers, number):
                            own = Cell("ids", model + suffix, transport, many)
                            try:
                                figure = measure(peer, own, seconds, directory)
                            except LoadFailed as error:
                                say(f"  {cell.name:36} {name:10} failed: {error}\n{peer.last_lines()}")
                                continue
                            rate, median = figure.requests_per_second, figure.median_us or 0.0
                            say(f"  {cell.name:36} {name:10}{rate:10,.0f} /s  median {median:8.0f} µs")
                            found[cell.name][name].append(figure)
    return found


def report(found: dict[str, dict[str, list[Figure]]]) -> list[str]:
    lines = [
        f"{'cell':36} {'server':10} {'requests/s':>12} {'×Triton (low–high)':>24} {'median µs':>10} {'×Triton':>8}"
    ]
    for cell, by_server in found.items():
        triton = by_server.get(TRITON, [])
        for name, figures in by_server.items():
            rates = [figure.requests_per_second for figure in figures]
            medians = [figure.median_us or 0.0 for figure in figures]
            ratios = [own / other.requests_per_second for own, other in zip(rates, triton, strict=False)]
            slower = [own / (other.median_us or 1.0) for own, other in zip(medians, triton, strict=False)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "--"
            beside = f"{statistics.median(slower):.2f}" if slower else "--"
            lines.append(
                f"{cell:36} {name:10} {statistics.median(rates):12,.0f} {spread:>24} "
                f"{statistics.median(medians):10.0f} {beside:>8}"
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker.python_models", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--in-flight", default="1,8,32")
    parser.add_argument("--quick", action="store_true", help="one round of one second: does everything still work?")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds = 1, 1.0
    found = run(given.rounds, given.seconds, [int(number) for number in given.in_flight.split(",")])
    print("\n".join(report(found)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "python-models-quick.json" if given.quick else "python-models.json"
    figures = {cell: {server: [vars(each) for each in own] for server, own in by.items()} for cell, by in found.items()}
    (RESULTS / name).write_text(json.dumps({"machine": describe(), "figures": figures}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
