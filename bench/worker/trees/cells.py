"""One measurement: a model of trees over a transport at a number in flight. Requests carry one row."""

import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http

from bench.worker.load import Figure, LoadFailed, first_group, grpc_load, grpc_rate, http_load, run_tool
from bench.worker.models import INPUT, OUTPUT
from bench.worker.payloads import GRPC_INFER_PATH
from bench.worker.peers import Peer
from bench.worker.scenarios import Scenario, grpc_message
from bench.worker.trees.models import FEATURES, Trained

TRANSPORTS = ("http", "grpc")
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class TreeScenario(Scenario):
    """One row in, two probabilities out."""

    @property
    def tensor_bytes(self) -> int:
        """Of the answer: what a call without an error has at least."""
        return 8


def scenario(library: str, backend: str) -> TreeScenario:
    model = f"{library}_{backend}"
    return TreeScenario(model, model, (1, FEATURES))


def verify(peer: Peer, model: Trained, backend: str) -> None:
    """Compares answers over both transports with the library's own, before any load."""
    rows = np.random.default_rng(3).standard_normal((20, FEATURES)).astype(np.float32)
    expected = model.predict(rows)
    for transport in TRANSPORTS:
        stock = tritonclient.http if transport == "http" else tritonclient.grpc
        address = (peer.http_url or "").removeprefix("http://") if transport == "http" else peer.grpc_address
        tensor = stock.InferInput(INPUT, list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows)
        with closing(stock.InferenceServerClient(address)) as client:
            given = client.infer(f"{model.library}_{backend}", [tensor]).as_numpy(OUTPUT)[:, 1]
        if not np.allclose(given, expected, atol=_TOLERANCE):
            raise LoadFailed(f"{model.library}_{backend} over {transport}: expected {expected[:3]}, given {given[:3]}")


def measure(peer: Peer, target: Scenario, transport: str, in_flight: int, seconds: float, directory: Path) -> Figure:
    if transport == "http":
        return http_load(peer, target, in_flight, seconds, directory)
    rate = grpc_rate(peer, target, in_flight, directory)
    return _grpc(peer, target, in_flight, max(in_flight, round(rate * seconds)), directory)


def _grpc(peer: Peer, target: Scenario, in_flight: int, requests: int, directory: Path) -> Figure:
    """h2load's figures, with the percentiles of its log of requests, which it does not print."""
    figure = grpc_load(peer, target, in_flight, requests, directory)
    body = directory / f"{target.model}.grpc"
    if not body.exists():
        body.write_bytes(grpc_message(target))
    with tempfile.NamedTemporaryFile(suffix=".tsv") as log:
        output = run_tool(
            [
                *("h2load", "-t1", f"-n{requests}", "-c1", f"-m{in_flight}", "-d", str(body), f"--log-file={log.name}"),
                *("-H", "content-type: application/grpc", "-H", "te: trailers"),
                f"http://{peer.grpc_address}{GRPC_INFER_PATH}",
            ],
            120,
        )
        if int(first_group(r"(\d+) succeeded", output)) != requests:
            raise LoadFailed(f"h2load: {first_group(r'(requests: .*)', output)}")
        # Start, status, duration in µs.
        durations = sorted(int(line.split("\t")[2]) for line in Path(log.name).read_text().splitlines())
    return replace(
        figure,
        median_us=float(durations[len(durations) // 2]),
        p99_us=float(durations[int(len(durations) * 0.99)]),
    )
