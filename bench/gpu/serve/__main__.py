"""``python -m bench.gpu.serve``: the worker beside raw graph replay, over loopback gRPC.

Models (ResNet-50 with FP16 and UINT8 pictures, encoder) × variants (with and without graphs, copies overlapped or
not) × transports (tensors in the message, in system and in CUDA shared memory) × one in flight and saturation. The
models have a worker each, one after the other, which serves all variants, as models of their own. The raw figures come
from a process beside it, before each round.
The first answers of every cell are compared with the raw model's: a wrong answer fails the cell. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from bench.gpu.serve.cells import Cell, by_model, chosen, in_turn, plan
from bench.gpu.serve.report import report, unmeasured
from bench.gpu.serve.stages import means_us, read_totals
from bench.gpu.worker import serve
from bench.worker.peers import Peer
from bench.worker.peers.process import scratch

#: Connections, regions and the end of a cell.
_CELL_SECONDS = 0.3


@dataclass(frozen=True)
class Pace:
    """How often a cell is measured, and the seconds of a figure and before it."""

    rounds: int
    seconds: float
    warm: float


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
    """Generators, the raw process and the worker of one model: figures of its cells."""

    def __init__(
        self,
        sizes: Sizes,
        peer: Peer,
        generators: Generators,
        raw: RawProcess,
        references: dict[int, np.ndarray],
        pace: Pace,
    ) -> None:
        """``references``: the right answers, by version."""
        self._sizes, self._peer, self._generators, self._raw = sizes, peer, generators, raw
        self._references, self.pace = references, pace

    def raw_figures(self, model: str) -> list[dict[str, Any]]:
        """The denominators: replay and copies at the largest batch, the call of one row."""
        seconds = min(1.0, self.pace.seconds)
        largest = self._sizes.max_batch
        measured = [(REPLAY, largest), (COPIES, largest), (CALL, 1), (REPLAY, 1)]
        return [self._raw.measure(model, mode, batch, seconds) for mode, batch in measured]

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Raises GeneratorFailed."""
        count = min(len(self._generators), cell.in_flight)
        share = -(-cell.in_flight // count)
        job = Job(
            cell.served_model,
            self._sizes,
            (str(self._peer.grpc_address),),
            self._references,
            cell.transport,
            connections=-(-share // 16),
            in_flight=cell.in_flight,
            seconds=self.pace.seconds,
            warm_seconds=self.pace.warm,
        )
        url = str(self._peer.http_url)
        stages = read_totals(url, cell.served_model)
        before, began = self._peer.cpu_seconds(), time.monotonic()
        found = summary(self._generators.run(job, count))
        # Registering regions and warming up are part of it: a little too much, if anything.
        found["server_cores"] = (self._peer.cpu_seconds() - before) / (time.monotonic() - began)
        found["stages_us"] = means_us(stages, read_totals(url, cell.served_model))
        return found


def fit(cells: int, wanted: Pace, left: float) -> Pace:
    """Fewer rounds of all cells of a model, then shorter figures, if ``left`` seconds are too few for more."""
    # Beside each cell its connections and regions; the four raw figures of the model, which are a second at most.
    fixed = cells * _CELL_SECONDS + 4 * min(1.0, wanted.seconds)
    one = fixed + cells * (wanted.seconds + wanted.warm)
    return Pace(
        rounds_within(left, wanted.rounds, one),
        scaled(left, one, wanted.seconds, least=0.5, fixed=fixed),
        scaled(left, one, wanted.warm, least=0.1, fixed=fixed),
    )


def measure_all(bench: Bench, cells: Sequence[Cell], results: ResultsFile, ends: float) -> bool:
    """Whether all cells were measured: ``--limit`` left none out."""
    pace = bench.pace
    measured: set[int] = set()
    for number, cell in in_turn(cells, pace.rounds):
        if time.monotonic() + pace.seconds + pace.warm > ends:
            say(f"--limit: nothing further of {cell.model} is begun in round {number + 1}")
            results.note(left_out=f"--limit, from {cell.name} of round {number + 1} on")
            return False
        if number not in measured:
            measured.add(number)
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


def measure_models(
    given: argparse.Namespace,
    repository: Path,
    directory: Path,
    of_server: Sequence[int],
    generators: Generators,
    raw: RawProcess,
    results: ResultsFile,
    ends: float,
) -> bool:
    """One worker for each model, with a share of the time in which its start is included; as ``measure_all``."""
    cores = os.sched_getaffinity(0)
    models = by_model(given.plan)
    wanted = Pace(given.rounds, given.seconds, given.warm)
    paces: dict[str, Any] = {}
    logs: dict[str, str] = {}
    is_whole = True
    for number, (model, cells) in enumerate(models.items()):
        began = time.monotonic()
        ends_model = began + (ends - began) / (len(models) - number)
        log_directory = directory / f"worker-{model}"
        log_directory.mkdir()
        stay(frozenset(of_server))  # the worker inherits it
        options = serve_options(cells, given.processes)
        with serve(repository, log_directory, options, timeout_seconds=given.load_timeout) as peer:
            stay(frozenset(cores))
            say(f"the worker is ready: {', '.join(dict.fromkeys(cell.served_model for cell in cells))}")
            version = 2 if model == TWO_TOWER else 1  # the latest is served
            references = {version: raw.reference(model, version)}  # loads the raw model, which takes a while
            pace = fit(len(cells), wanted, ends_model - time.monotonic())
            paces[model] = asdict(pace)
            results.note(paces=paces)
            bench = Bench(given.sizes, peer, generators, raw, references, pace)
            is_whole &= measure_all(bench, cells, results, ends_model)
            logs[model] = peer.last_lines(20)
            results.note(worker_logs=logs)
    return is_whole


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
        with (
            RawProcess(repository, given.sizes, given.device, of_server) as raw,
            Generators(min(given.generators, len(of_generators)), of_generators) as generators,
        ):
            is_whole = measure_models(given, repository, directory, of_server, generators, raw, results, ends)
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
