"""``python -m bench.gpu.serve``: the worker beside raw graph replay, over loopback gRPC.

Models (ResNet-50 with FP16 and UINT8 pictures, encoder) × variants (with and without graphs, copies overlapped or
not) × transports (tensors in the message, in system and in CUDA shared memory) × one in flight and saturation. One
worker serves all variants, as models of their own. The raw figures come from a process beside it, before each round.
The first answers of every cell are compared with the raw model's: a wrong answer fails the cell. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.gateway.placement import stay
from bench.gpu.budget import rounds_within, scaled
from bench.gpu.figures import ResultsFile
from bench.gpu.load.cores import split_cores
from bench.gpu.load.generators import GeneratorFailed, Generators, Job, fault, summary
from bench.gpu.load.regions import CUDA, TRANSPORTS
from bench.gpu.models.repository import compute_alike, write_repository
from bench.gpu.models.specs import ENCODER, FULL, RESNET, RESNET_UINT8, TINY, TWO_TOWER, Sizes
from bench.gpu.progress import say
from bench.gpu.raw.process import RawProcess
from bench.gpu.raw.raw_model import CALL, COPIES, REPLAY
from bench.gpu.serve.cells import Cell, chosen, in_turn, plan
from bench.gpu.serve.report import report, unmeasured
from bench.gpu.serve.stages import means_us, read_totals
from bench.gpu.worker import serve
from bench.worker.peers import Peer
from bench.worker.peers.process import scratch

#: Connections, regions and the end of a cell.
_CELL_SECONDS = 0.3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.serve", description=__doc__)
    parser.add_argument("--repository", type=Path, help="of bench.gpu.models; what is missing in it is made")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--models", default=",".join((RESNET, RESNET_UINT8, ENCODER)))
    parser.add_argument("--cells", default="", help="MODEL/VARIANT/TRANSPORT/IN-FLIGHT with *, several with commas")
    parser.add_argument("--in-flight", type=int, default=256, help="at saturation, over all generators")
    parser.add_argument("--generators", type=int, default=8, help="processes")
    parser.add_argument("--server-cores", type=int, default=6, help="the first ones; generators have the others")
    parser.add_argument("--processes", type=int, default=1, help="of the worker")
    parser.add_argument("--compile", default="", help="parameter of the models, such as max-autotune-no-cudagraphs")
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure, after --warm")
    parser.add_argument("--warm", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit",
        type=float,
        default=620.0,
        help="seconds from the start: fewer rounds, shorter figures; none is begun later",
    )
    parser.add_argument("--load-timeout", type=float, default=240.0, help="seconds until the worker must be ready")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    given.sizes = TINY if given.tiny else FULL
    transports = [each for each in TRANSPORTS if each != CUDA or given.device != "cpu"]
    try:
        given.plan = chosen(plan(given.models.split(","), given.in_flight, transports), given.cells)
    except ValueError as error:
        parser.error(str(error))
    return given


def serve_options(cells: Sequence[Cell], processes: int) -> list[str]:
    """Only the chosen models are loaded."""
    options = ["--allow-shared-memory", "--model-control-mode", "explicit"]
    for model in dict.fromkeys(cell.served_model for cell in cells):
        options += ["--load-model", model]
    if any(cell.transport == CUDA for cell in cells):
        options.append("--allow-cuda-shared-memory")
    return [*options, "--processes", str(processes)] if processes > 1 else options


class Bench:
    """A running worker, generators and the raw process: figures of cells."""

    def __init__(self, given: argparse.Namespace, peer: Peer, generators: Generators, raw: RawProcess) -> None:
        self._given, self._peer, self._generators, self._raw = given, peer, generators, raw
        self._sizes: Sizes = given.sizes
        self._references: dict[str, np.ndarray] = {}

    def raw_figures(self, model: str) -> list[dict[str, Any]]:
        """The denominators: replay and copies at the largest batch, the call of one row."""
        seconds = min(1.0, self._given.seconds)
        largest = self._sizes.max_batch
        measured = [(REPLAY, largest), (COPIES, largest), (CALL, 1), (REPLAY, 1)]
        return [self._raw.measure(model, mode, batch, seconds) for mode, batch in measured]

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Raises GeneratorFailed."""
        version = 2 if cell.model == TWO_TOWER else 1  # the latest is served
        if cell.model not in self._references:
            self._references[cell.model] = self._raw.reference(cell.model, version)
        count = min(len(self._generators), cell.in_flight)
        share = -(-cell.in_flight // count)
        job = Job(
            cell.served_model,
            self._sizes,
            (str(self._peer.grpc_address),),
            {version: self._references[cell.model]},
            cell.transport,
            connections=-(-share // 16),
            in_flight=cell.in_flight,
            seconds=self._given.seconds,
            warm_seconds=self._given.warm,
        )
        url = str(self._peer.http_url)
        stages = read_totals(url, cell.served_model)
        before, began = self._peer.cpu_seconds(), time.monotonic()
        found = summary(self._generators.run(job, count))
        # Registering regions and warming up are part of it: a little too much, if anything.
        found["server_cores"] = (self._peer.cpu_seconds() - before) / (time.monotonic() - began)
        found["stages_us"] = means_us(stages, read_totals(url, cell.served_model))
        return found


def fit(given: argparse.Namespace, left: float) -> None:
    """Fewer rounds of all cells, then shorter figures, if ``--limit`` leaves no time for more."""
    models = len({cell.model for cell in given.plan})
    # Beside each cell its connections and regions; the four raw figures of a model, which are a second at most.
    fixed = len(given.plan) * _CELL_SECONDS + models * 4 * min(1.0, given.seconds)
    one = fixed + len(given.plan) * (given.seconds + given.warm)
    given.rounds = rounds_within(left, given.rounds, one)
    given.seconds = scaled(left, one, given.seconds, least=0.5, fixed=fixed)
    given.warm = scaled(left, one, given.warm, least=0.1, fixed=fixed)


def measure_all(bench: Bench, given: argparse.Namespace, results: ResultsFile, ends: float) -> bool:
    """Whether all cells were measured: ``--limit`` left none out."""
    fit(given, ends - time.monotonic())
    results.note(rounds=given.rounds, seconds=given.seconds, warm=given.warm)
    measured: set[tuple[int, str]] = set()
    for number, cell in in_turn(given.plan, given.rounds):
        if time.monotonic() + given.seconds + given.warm > ends:
            say(f"--limit: nothing further is begun in round {number + 1}")
            results.note(left_out=f"--limit, from {cell.name} of round {number + 1} on")
            return False
        if (number, cell.model) not in measured:
            measured.add((number, cell.model))
            for figure in bench.raw_figures(cell.model):
                results.add(kind="raw", round=number, model=cell.model, **figure)
        about = {"kind": "served", "round": number, "cell": cell.name, **vars(cell)}
        try:
            figure = bench.measure(cell)
            problem = fault(figure)
        except GeneratorFailed as error:
            figure, problem = {}, str(error)
        results.add(**about, **figure, problem=problem)
        rate, median = figure.get("requests_per_second", 0.0), figure.get("p50_us", 0.0)
        say(f"{number + 1} {cell.name:44} {rate:9,.0f} /s  p50 {median / 1e3:.3f} ms  {problem}")
    return True


def main() -> int:
    given = arguments()
    ends = time.monotonic() + given.limit
    compute_alike(given.device)
    cores = sorted(os.sched_getaffinity(0))
    of_server, of_generators = split_cores(cores, given.server_cores)
    results = ResultsFile("gpu-serve", given.results, device=given.device, sizes=given.sizes.name, cores=len(of_server))
    with scratch("gpu-serve") as directory:
        repository = given.repository or directory / "models"
        parameters = {"compile": given.compile} if given.compile else {}
        models = list(dict.fromkeys(cell.model for cell in given.plan))
        variants = list(dict.fromkeys(cell.variant for cell in given.plan))
        write_repository(repository, given.device, given.sizes, models, variants, parameters)
        stay(frozenset(of_server))  # the worker inherits it
        options = serve_options(given.plan, given.processes)
        with serve(repository, directory, options, timeout_seconds=given.load_timeout) as peer:
            stay(frozenset(cores))
            say(f"the worker is ready: {', '.join(dict.fromkeys(cell.served_model for cell in given.plan))}")
            with (
                RawProcess(repository, given.sizes, given.device, of_server) as raw,
                Generators(min(given.generators, len(of_generators)), of_generators) as generators,
            ):
                is_whole = measure_all(Bench(given, peer, generators, raw), given, results, ends)
            results.note(worker_log=peer.last_lines(20))
    text, failed = report(results.figures, given.sizes.max_batch, given.device)
    print(text)
    missing = unmeasured(given.plan, results.figures)
    if missing:
        print(f"NOT MEASURED: {', '.join(missing)}")
    shortfall = results.shortfall("served models", limited=not is_whole, kind="served")
    print(shortfall)
    print(f"written: {results.path}")
    return 1 if failed or missing or shortfall else 0


if __name__ == "__main__":
    sys.exit(main())
