"""`python -m bench.worker.trees`: requests/s and p99 of decision trees through our worker.

500 trees of depth 6 over 64 features, of XGBoost, LightGBM and scikit-learn, one row per request. In turns: the backend
fil, and the same model as ONNX in the backend onnxruntime. Beside them the library alone in a loop, and treelite's
interpreter. See bench/README.md.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import treelite

from bench.ports import free_ports
from bench.worker.load import Figure
from bench.worker.machine import RESULTS, describe
from bench.worker.peers import Peer
from bench.worker.peers.process import HOST, answers, installed_version, running, scratch
from bench.worker.trees.bare import loop
from bench.worker.trees.cells import TRANSPORTS, measure, scenario, verify
from bench.worker.trees.models import BACKENDS, DEPTH, FEATURES, LIBRARIES, TREES, Trained, trained, write_repository

BATCHES = (1, 8, 32)
IN_FLIGHT = (1, 8, 32)


@contextmanager
def worker(models: list[Trained]) -> Iterator[Peer]:
    """Our worker with both models of every library while the block runs."""
    python = Path(sys.executable)
    with scratch("trees") as directory:
        repository = write_repository(directory / "models", models)
        http_port, grpc_port = free_ports(2)
        url = f"http://{HOST}:{http_port}"
        log = directory / "isochrone.log"
        command: list[str | Path] = [
            *(python.parent / "isochrone", "serve", repository, "--host", HOST, "--no-allow-metrics"),
            *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        ]
        with running("isochrone", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
            names = tuple(f"{model.library}_{backend}" for model in models for backend in BACKENDS)
            version = installed_version(python, "isochrone")
            yield Peer("isochrone", version, pid, log, names, http_url=url, grpc_address=f"{HOST}:{grpc_port}")


def bare_loops(model: Trained, seconds: float) -> list[dict[str, Any]]:
    """The library alone, and treelite's interpreter of the same model, on one thread."""
    interpreted = _read(model)

    def by_treelite(rows: Any) -> Any:
        return treelite.gtil.predict(interpreted, rows, nthread=1)

    found = []
    for name, predict in ((model.library, model.predict), ("treelite", by_treelite)):
        found += [{"loop": name, **asdict(loop(predict, batch, seconds))} for batch in BATCHES]
    return found


def _read(model: Trained) -> treelite.Model:
    if model.model_type == "xgboost_json":
        return treelite.frontend.load_xgboost_model(model.file)
    if model.model_type == "lightgbm":
        return treelite.frontend.load_lightgbm_model(model.file)
    return treelite.Model.deserialize(model.file)


def table(samples: dict[str, list[Figure]], cell: str) -> None:
    """One line per cell: both backends, and the ratio of their requests/s round by round."""
    shown = []
    for backend in BACKENDS:
        figures = samples[backend]
        rate = statistics.median(figure.requests_per_second for figure in figures)
        p99 = statistics.median(figure.p99_us or 0 for figure in figures)
        shown.append(f"{backend} {rate:8,.0f}/s p99 {p99:7,.0f} µs")
    pairs = zip(*(samples[backend] for backend in BACKENDS), strict=True)
    ratios = [ours.requests_per_second / other.requests_per_second for ours, other in pairs]
    print(
        f"{cell:24} {'   '.join(shown)}   ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}–{max(ratios):.2f}]"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker.trees", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one figure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="figures of every cell (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of one second")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default: %(default)s")
    given = parser.parse_args()
    seconds, rounds = (1.0, 1) if given.quick else (given.seconds, given.rounds)
    for tool in ("wrk", "h2load"):
        if shutil.which(tool) is None:
            sys.exit(f"bench.worker.trees: {tool} is not installed")
    results: dict[str, Any] = {
        "machine": describe(),
        "trees": {"count": TREES, "depth": DEPTH, "features": FEATURES},
        "seconds": seconds,
        "rounds": rounds,
        "cells": {},
        "loops": {},
    }
    models = [trained(library, RESULTS / "trees") for library in given.libraries.split(",")]
    for model in models:
        results["loops"][model.library] = found = bare_loops(model, min(seconds, 2.0))
        for each in found:
            name = f"{model.library}: {each['loop']} ×{each['batch']} rows"
            print(f"{name:36} {each['rows_per_second']:10,.0f} rows/s  {each['median_us']:8,.0f} µs a call")
    with worker(models) as peer, scratch("trees-load") as directory:
        for model in models:
            for backend in BACKENDS:
                verify(peer, model, backend)
        for model in models:
            for transport in TRANSPORTS:
                for in_flight in IN_FLIGHT:
                    samples: dict[str, list[Figure]] = {backend: [] for backend in BACKENDS}
                    for number in range(rounds):
                        for backend in BACKENDS if number % 2 == 0 else BACKENDS[::-1]:
                            target = scenario(model.library, backend)
                            figure = measure(peer, target, transport, in_flight, seconds, directory)
                            samples[backend].append(figure)
                    cell = f"{model.library} {transport} ×{in_flight}"
                    table(samples, cell)
                    results["cells"][cell] = {
                        name: [asdict(each) for each in each_of] for name, each_of in samples.items()
                    }
    path = RESULTS / "trees.json"
    path.write_text(json.dumps(results, indent=1))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
