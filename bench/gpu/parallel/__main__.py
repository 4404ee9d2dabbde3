"""``python -m bench.gpu.parallel``: an encoder with ``tensor_parallel: "1"`` beside the plain torch backend.

Both are the same network with the same weights in one worker: ``encoder`` is its exported program (model.pt2),
``encoder-ranks`` its model.py with model.safetensors. They are measured in turns, at saturation and with one in flight;
the ratio is that of each round. The first answers of every figure are compared with those of the bare module. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.gateway.placement import stay
from bench.gpu.figures import ResultsFile
from bench.gpu.load.cores import split_cores
from bench.gpu.load.generators import GeneratorFailed, Generators, Job, fault, summary
from bench.gpu.models.repository import build, compute_alike, write_repository
from bench.gpu.models.specs import ENCODER, FULL, OVERLAP, TINY, Sizes, config_text, spec_of
from bench.gpu.progress import say
from bench.gpu.worker import serve
from bench.worker.peers.process import REPOSITORY_ROOT, scratch

PLAIN, RANKS = ENCODER, f"{ENCODER}-ranks"
#: What the code of parallel instances must keep of the plain backend.
PROMISED_SHARE = 0.95
_SOURCE = """\
import torch
from networks import Encoder


def build():
    return Encoder({layers}, {hidden}, {heads}, {tokens}, {vocabulary}).to(torch.{dtype})
"""


def write_ranks(directory: Path, device: str, sizes: Sizes) -> np.ndarray:
    """Writes the encoder as a model with ranks, with the weights of the exported one; the right answers."""
    import torch
    from safetensors.torch import save_file

    spec = spec_of(RANKS, sizes)
    version = directory / RANKS / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(REPOSITORY_ROOT / "bench" / "gpu" / "models" / "networks.py", version / "networks.py")
    dtype = "float32" if device == "cpu" else "float16"
    (version / "model.py").write_text(
        _SOURCE.format(
            layers=sizes.layers,
            hidden=sizes.hidden,
            heads=sizes.heads,
            tokens=sizes.tokens,
            vocabulary=sizes.vocabulary,
            dtype=dtype,
        )
    )
    module = build(spec_of(PLAIN, sizes), device)
    weights = {name: tensor.cpu().contiguous() for name, tensor in module.state_dict().items()}
    save_file(weights, version / "model.safetensors")
    text = config_text(spec, device, OVERLAP, {"tensor_parallel": "1"})
    (directory / RANKS / "config.pbtxt").write_text(text)
    with torch.no_grad():
        reference: np.ndarray = module(torch.from_numpy(spec.samples()["ids"]).to(device)).cpu().numpy()
    return reference


def measure(
    given: argparse.Namespace, generators: Generators, address: str, model: str, reference: Any, in_flight: int
) -> dict[str, Any]:
    count = min(len(generators), in_flight)
    job = Job(
        model,
        given.sizes,
        (address,),
        {1: reference},
        connections=-(-in_flight // count // 16),
        in_flight=in_flight,
        seconds=given.seconds,
        warm_seconds=given.warm,
    )
    try:
        figure = summary(generators.run(job, count))
        problem = fault(figure)
    except GeneratorFailed as error:
        figure, problem = {}, str(error)
    return {**figure, "problem": problem}


def ratio(plain: dict[str, Any], ranks: dict[str, Any], in_flight: int) -> float:
    """What the model with ranks keeps: of the rate at saturation, of the speed of one request otherwise."""
    if in_flight == 1:
        return float(plain["p50_us"] / ranks["p50_us"])
    return float(ranks["requests_per_second"] / plain["requests_per_second"])


def report(figures: list[dict[str, Any]], in_flights: list[int], device: str) -> tuple[str, bool]:
    """The text; whether the promise is kept. On a CPU there is none."""
    lines, kept = [], True
    for in_flight in in_flights:
        rounds: dict[int, dict[str, dict[str, Any]]] = {}
        for each in figures:
            if each["in_flight"] == in_flight and not each["problem"]:
                rounds.setdefault(each["round"], {})[each["model"]] = each
        shares = [ratio(pair[PLAIN], pair[RANKS], in_flight) for pair in rounds.values() if len(pair) == 2]
        if not shares:
            lines.append(f"{in_flight} in flight: NOT MEASURED")
            kept = False
            continue
        middle = statistics.median(shares)
        kept &= middle >= PROMISED_SHARE or device == "cpu"
        what = "speed of one request (median)" if in_flight == 1 else "requests/s"
        said = "" if device == "cpu" else f", promised {PROMISED_SHARE:.0%}"
        rounds_said = f"({min(shares):.1%}–{max(shares):.1%})"
        lines.append(f"{in_flight} in flight, {what}: {middle:.1%} of the plain backend {rounds_said}{said}")
    return "\n".join(lines), kept


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.parallel", description=__doc__)
    parser.add_argument("--repository", type=Path, help="of bench.gpu.models; what is missing in it is made")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--in-flight", type=int, default=256, help="at saturation, over all generators")
    parser.add_argument("--generators", type=int, default=8, help="processes")
    parser.add_argument("--server-cores", type=int, default=6, help="the first ones; generators have the others")
    parser.add_argument("--seconds", type=float, default=1.2, help="per figure, after --warm")
    parser.add_argument("--warm", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load-timeout", type=float, default=240.0, help="seconds until the worker must be ready")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    given.sizes = TINY if given.tiny else FULL
    return given


def main() -> int:
    given = arguments()
    # The worker must not outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    compute_alike(given.device)
    cores = sorted(os.sched_getaffinity(0))
    of_server, of_generators = split_cores(cores, given.server_cores)
    results = ResultsFile("gpu-parallel", given.results, device=given.device, sizes=given.sizes.name)
    in_flights = [1, given.in_flight]
    with scratch("gpu-parallel") as directory:
        repository = given.repository or directory / "models"
        write_repository(repository, given.device, given.sizes, [PLAIN], [OVERLAP])
        reference = write_ranks(repository, given.device, given.sizes)
        options = ["--model-control-mode", "explicit", "--load-model", PLAIN, "--load-model", RANKS]
        with Generators(min(given.generators, len(of_generators)), of_generators) as generators:
            stay(frozenset(of_server))  # the worker inherits it
            with serve(repository, directory, options, timeout_seconds=given.load_timeout) as peer:
                stay(frozenset(cores))
                for number in range(given.rounds):
                    for in_flight in in_flights:
                        # In turns, each first in every second round.
                        for model in (PLAIN, RANKS) if number % 2 == 0 else (RANKS, PLAIN):
                            address = str(peer.grpc_address)
                            figure = measure(given, generators, address, model, reference, in_flight)
                            results.add(round=number, model=model, in_flight=in_flight, **figure)
                            rate, median = figure.get("requests_per_second", 0.0), figure.get("p50_us", 0.0)
                            say(
                                f"{number + 1} {model:16} {in_flight:4} in flight {rate:9,.0f} /s"
                                f"  p50 {median / 1e3:.3f} ms  {figure['problem']}"
                            )
                results.note(worker_log=peer.last_lines(20))
    text, kept = report(results.figures, in_flights, given.device)
    print(text)
    problems = {f"FAILED {each['model']}: {each['problem']}" for each in results.figures if each["problem"]}
    print("\n".join(sorted(problems)))
    print(f"written: {results.path}")
    return 0 if kept and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
