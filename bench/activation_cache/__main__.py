"""`python -m bench.activation_cache`: a network with and without the activation cache on made pictures.

One worker serves the same network several times: without the cache, with it as it is by default, and with other
thresholds. Each picture goes to the network with the cache and to that without it, in an order that
alternates, 30 pictures a second; the difference of the two answers is the error that reuse caused. The drift runs as
fast as it can and without an age limit, so that only similarity bounds its error.

It does not show what the error means to a task: the weights are random. It does not show a busy worker either: there is
one request at a time, so a hit saves time and no queue.
"""

import argparse
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http

from bench.activation_cache import frames
from bench.activation_cache.frames import Frame
from bench.activation_cache.network import network
from bench.ports import free_ports
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import answers, running, scratch
from isochrone.worker.activation_cache.sampling import output_error

FPS = 30
PLAIN, CACHED, MEAN_ONLY = "plain", "cached", "mean_only"
_HOUR_MS = "3600000"
#: The networks of the drift, with the cache: similarity and budget.
DRIFTING = {"drift_95": ("0.95", "0.3"), "drift_99": ("0.99", "0.15"), "drift_alarm": ("0.95", "0.05")}
SCENARIOS: dict[str, Callable[[int], Iterator[Frame]]] = {
    "still, noise": frames.still,
    "slow pan": frames.slow_pan,
    "sudden cut": frames.sudden_cut,
    "two agents": frames.two_agents,
    "pedestrian": frames.pedestrian,
}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One scenario."""

    scenario: str
    pictures: int
    hit_rate: float
    with_ms: float
    without_ms: float
    #: Of the answers of hits.
    mean_error: float
    largest_error: float
    #: Time of all comparisons, as a share of the compute time that hits saved.
    comparison_share: float
    #: Hits whose outputs were computed from a picture of another scene; None: there is one scene.
    stale: int | None
    alarmed: bool


def write_repository(root: Path, width: int) -> None:
    data = network(width=width)
    settings: dict[str, dict[str, str]] = {
        PLAIN: {},
        CACHED: {"": "temporal,spatial"},
        MEAN_ONLY: {"": "temporal", "_block_similarity": "-1"},
    }
    for name, (similarity, budget) in DRIFTING.items():
        settings[name] = {
            "": "temporal",
            "_similarity": similarity,
            "_error_budget": budget,
            "_age_ms": _HOUR_MS,
        }
    for name, parameters in settings.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.onnx").write_bytes(data)
        entries = "".join(
            f'parameters {{ key: "activation_cache{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in parameters.items()
        )
        (root / name / "config.pbtxt").write_text(f'name: "{name}"\nmax_batch_size: 4\n{entries}')


class Worker:
    """The client's side of the worker."""

    def __init__(self, http_port: int, metrics_port: int) -> None:
        self._client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{http_port}")
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"

    def send(self, model: str, frame: Frame) -> tuple[Array, str, float]:
        """The features, how they came about, and milliseconds."""
        entry = tritonclient.http.InferInput("picture", [1, *frame.picture.shape], "UINT8")
        entry.set_data_from_numpy(frame.picture[None])
        started = time.perf_counter()
        result = self._client.infer(model, [entry], parameters=frame.parameters)
        elapsed = (time.perf_counter() - started) * 1000
        features = result.as_numpy("features")
        assert features is not None
        return features, result.get_response().get("parameters", {}).get("activation_cache", ""), elapsed

    def metric(self, name: str, model: str) -> float:
        """The sum over all labels but the model."""
        with urllib.request.urlopen(self._metrics, timeout=30) as response:
            lines = response.read().decode().splitlines()
        wanted = f'isochrone_activation_cache_{name}{{model="{model}"'
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted))

    def close(self) -> None:
        self._client.close()


@contextmanager
def serving(directory: Path, width: int) -> Iterator[Worker]:
    write_repository(directory / "models", width)
    http_port, metrics_port = free_ports(2)
    command: list[str | Path] = [
        *(Path(sys.executable).parent / "isochrone", "serve", directory / "models", "--host", "127.0.0.1"),
        *("--http-port", str(http_port), "--no-allow-grpc", "--metrics-port", str(metrics_port)),
    ]
    ready = f"http://127.0.0.1:{http_port}/v2/health/ready"
    with running("isochrone", command, lambda: answers(ready), log=directory / "worker.log"):
        worker = Worker(http_port, metrics_port)
        try:
            yield worker
        finally:
            worker.close()


def measure(worker: Worker, name: str, model: str, pictures: Iterable[Frame], fps: float) -> Row:
    before = {figure: worker.metric(figure, model) for figure in ("saved_seconds_total", "comparison_seconds_total")}
    times: dict[str, list[float]] = {model: [], PLAIN: []}
    errors: list[float] = []
    count = hits = stale = 0
    #: The scene of each computed picture, by its features: which picture a hit was computed from.
    computed: dict[bytes, int] = {}
    scenes: set[int] = set()
    due = time.perf_counter()
    for count, frame in enumerate(pictures, 1):
        scenes.add(frame.scene)
        order = (model, PLAIN) if count % 2 else (PLAIN, model)
        answered = {}
        for each in order:
            answered[each] = worker.send(each, frame)
            times[each].append(answered[each][2])
        features, outcome, _ = answered[model]
        if outcome == "hit":
            hits += 1
            stale += computed[features.tobytes()] != frame.scene
            errors.append(output_error({"features": features}, {"features": answered[PLAIN][0]}))
        elif outcome == "miss":
            computed[features.tobytes()] = frame.scene
        if fps:
            due += 1 / fps
            time.sleep(max(0.0, due - time.perf_counter()))
    saved, compared = (worker.metric(figure, model) - before[figure] for figure in before)
    return Row(
        name,
        count,
        hits / count,
        statistics.fmean(times[model]),
        statistics.fmean(times[PLAIN]),
        statistics.fmean(errors) if errors else 0.0,
        max(errors, default=0.0),
        compared / saved if saved else float("inf"),
        stale if len(scenes) > 1 else None,
        bool(worker.metric("alarm", model)),
    )


def show(rows: list[Row]) -> None:
    print("| pictures | count | hit rate | with | without | mean error | largest error | comparing / saved | stale |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.scenario} | {row.pictures} | {row.hit_rate:.1%} | {row.with_ms:.1f} ms | {row.without_ms:.1f} ms |"
            f" {row.mean_error:.3f} | {row.largest_error:.3f}{' (alarm)' if row.alarmed else ''} |"
            f" {row.comparison_share:.1%} | {'–' if row.stale is None else row.stale} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each scenario at 30 pictures a second")
    parser.add_argument("--drift", type=int, default=1000, help="pictures of the drift")
    parser.add_argument("--width", type=int, default=1, help="of the network; 2: almost four times the work")
    options = parser.parse_args()
    rows = []
    with scratch("activations") as directory, serving(directory, options.width) as worker:
        for name, made in SCENARIOS.items():
            pictures = list(made(round(options.seconds * FPS)))
            rows.append(measure(worker, name, CACHED, pictures, FPS))
            show(rows[-1:])
        pictures = list(frames.pedestrian(round(options.seconds * FPS)))
        rows.append(measure(worker, "pedestrian, without the local check", MEAN_ONLY, pictures, FPS))
        show(rows[-1:])
        for model, (similarity, budget) in DRIFTING.items():
            name = f"drift, similarity {similarity}, budget {budget}"
            rows.append(measure(worker, name, model, frames.drift(options.drift), 0))
            show(rows[-1:])
    print()
    show(rows)
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": describe(), "rows": [asdict(row) for row in rows]}
    (RESULTS / "activation_cache.json").write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
