"""``python -m bench.profiling``: the search of ``isochrone profile`` beside a full sweep, on three models.

For each model: the search, with the time of its process, its loads and its runs; then every configuration of the sweep
for ``--window`` seconds each, in one process, ordered so that each pair of threads and instances is loaded once; then
the best of both in turns, for the ratio of their throughputs. The sweep has batches 1, 2, 4, … 128, threads 1, 2, 4, …
to the cores, and instances 1 to 5 or to the cores. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.profiling.models import MODELS, write_repository
from bench.worker.machine import RESULTS, describe
from isochrone.optimize.profiling.profile import measured, profile, read_model, space_of
from isochrone.optimize.profiling.running.process import ModelProcess
from isochrone.optimize.profiling.search.objective import best
from isochrone.optimize.profiling.search.search import Point
from isochrone.optimize.profiling.search.space import Configuration


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.profiling", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="of perceptron, convolution, encoder")
    parser.add_argument("--slo-ms", type=float, default=20.0, help="0: none")
    parser.add_argument("--window", type=float, default=1.0, help="seconds of each configuration of the sweep")
    parser.add_argument("--turns", type=int, default=5, help="of the comparison at the end")
    return parser.parse_args()


def compare(repository: Path, name: str, slo_ns: float | None, window: float, turns: int) -> dict[str, Any]:
    description, version = read_model(repository, name, None)
    began = time.monotonic()
    outcome = profile(repository, description, version, slo_ns=slo_ns, seconds=600, shapes={}, report=say)
    search_seconds = time.monotonic() - began
    space = space_of(description, version, len(os.sched_getaffinity(0)))
    with ModelProcess(repository, name, version, {}) as process:
        began = time.monotonic()
        points = {}
        for number, each in enumerate(space.sweep()):
            points[each] = measured(process, each, least_seconds=window, seconds=window)
            if number % 10 == 9:
                say(f"{name}: {number + 1} of {len(space.sweep())} swept")
        sweep_seconds = time.monotonic() - began
        chosen = points[best((point.value for point in points.values()), slo_ns).configuration]
        found = outcome.found
        ratios = [
            _again(process, found.configuration, window) / _again(process, chosen.configuration, window)
            for _ in range(turns if found.configuration != chosen.configuration else 0)
        ] or [1.0]
    return {
        "model": name,
        "found": _shown(found),
        "swept": _shown(chosen),
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratios": ratios,
        "search_points": len(outcome.points),
        "sweep_points": len(points),
        "search_seconds": search_seconds,
        "sweep_seconds": sweep_seconds,
        "other_cores": max(outcome.other_cores, statistics.mean(point.other_cores for point in points.values())),
        "time_ratio": search_seconds / sweep_seconds,
    }


def _again(process: ModelProcess, configuration: Configuration, window: float) -> float:
    return measured(process, configuration, least_seconds=window, seconds=window).rows_per_second


def _shown(point: Point) -> dict[str, float]:
    at = point.configuration
    return {
        "batch": at.batch,
        "threads": at.threads,
        "instances": at.instances,
        "rows_per_second": point.rows_per_second,
        "latency_ms": point.value.latency_ns / 1e6,
    }


def main() -> None:
    given = arguments()
    slo_ns = given.slo_ms * 1e6 or None
    results = []
    with TemporaryDirectory(prefix="isochrone-bench-") as directory:
        repository = write_repository(Path(directory))
        for name in given.models.split(","):
            results.append(compare(repository, name, slo_ns, given.window, given.turns))
            print(row(results[-1]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    document = {"machine": describe(), "slo_ms": given.slo_ms, "window": given.window, "models": results}
    (RESULTS / "profiling.json").write_text(json.dumps(document, indent=2) + "\n")


def row(result: dict[str, Any]) -> str:
    def at(point: dict[str, float]) -> str:
        return f"{point['batch']}/{point['threads']}/{point['instances']} at {point['latency_ms']:.1f} ms"

    low, high = min(result["throughput_ratios"]), max(result["throughput_ratios"])
    return (
        f"{result['model']:12} found {at(result['found'])}, swept {at(result['swept'])}: throughput"
        f" {result['throughput_ratio']:.3f} ({low:.2f} to {high:.2f}); {result['search_points']} of"
        f" {result['sweep_points']} points, {result['search_seconds']:.1f} of {result['sweep_seconds']:.1f} s"
        f" = {result['time_ratio']:.3f}; other processes used {result['other_cores']:.1f} cores"
    )


if __name__ == "__main__":
    main()
