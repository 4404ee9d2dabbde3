"""`python -m bench.worker.memory`: a million mixed requests, and the worker's resident memory all the way.

HTTP and gRPC, four models, tensors up to 1 MB, one request in four an error, connections reopened every few
hundred answers. Growth is counted from the end of the warm-up. See bench/README.md.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.worker.conversations import http_bytes
from bench.worker.crowd import Crowd, GrpcClient, GrpcExchange, HttpClient, HttpExchange, Tally
from bench.worker.machine import RESULTS, describe
from bench.worker.models import IDENTITY_BATCHED, IDENTITY_WIDTH, write_onnx
from bench.worker.payloads import HttpRequest, grpc_infer, http_infer, http_infer_json
from bench.worker.peers import Peer, isochrone_worker
from bench.worker.peers.process import HOST
from bench.worker.scenarios import IDENTITY_1MB, IDENTITY_64, LARGE, SMALL, Scenario, grpc_message, http_request

CONNECTIONS_EACH = 16
#: Ten quick requests come so often before the two slow ones (the large perceptron, 1 MB), which else set the pace.
QUICK_ROUNDS = 10
WARM_UP_SHARE = 0.1
LIMIT_PERCENT = 2.0


@dataclass
class Growth:
    """The worker's resident memory over a run: (requests answered, bytes)."""

    requests: int
    samples: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)

    def median_between(self, low_share: float, high_share: float) -> float:
        """The median sample of a stretch of the run."""
        low, high = low_share * self.requests, high_share * self.requests
        chosen = [resident for answered, resident in self.samples if low <= answered <= high]
        return statistics.median(chosen) if chosen else float(self.samples[-1][1])

    @property
    def warm(self) -> float:
        return self.median_between(WARM_UP_SHARE, WARM_UP_SHARE + 0.05)

    @property
    def final(self) -> float:
        return self.median_between(0.95, 1.1)

    @property
    def percent(self) -> float:
        return 100 * (self.final / self.warm - 1)


def http_exchanges(peer: Peer) -> list[HttpExchange]:
    """What every HTTP connection sends in turn."""
    data = IDENTITY_64.tensor().tobytes()

    def exchange(name: str, request: HttpRequest, status: int = 200) -> HttpExchange:
        return HttpExchange(name, http_bytes(request, HOST), status)

    quick = [
        exchange("binary identity", http_request(peer, IDENTITY_64)),
        exchange("JSON identity", http_infer_json("identity", [IDENTITY_WIDTH], [1.0] * IDENTITY_WIDTH)),
        exchange("batched identity", http_infer(IDENTITY_BATCHED, [1, IDENTITY_WIDTH], data)),
        exchange("small perceptron", http_request(peer, SMALL)),
        exchange("unknown model", http_infer("nobody", [IDENTITY_WIDTH], data), 404),
        exchange("small perceptron", http_request(peer, SMALL)),
        exchange("wrong shape", http_infer(SMALL.model, [1, IDENTITY_WIDTH - 1], data[:-4]), 400),
        exchange("binary identity", http_request(peer, IDENTITY_64)),
        exchange("broken JSON", HttpRequest("/v2/models/identity/infer", b'{"inputs": [', {}), 400),
        exchange("batched identity", http_infer(IDENTITY_BATCHED, [1, IDENTITY_WIDTH], data)),
    ]
    slow = [exchange(scenario.name, http_request(peer, scenario)) for scenario in (LARGE, IDENTITY_1MB)]
    return quick * QUICK_ROUNDS + slow


def grpc_exchanges() -> list[GrpcExchange]:
    """The same over gRPC."""
    data = IDENTITY_64.tensor().tobytes()

    def exchange(scenario: Scenario) -> GrpcExchange:
        return GrpcExchange(scenario.name, grpc_message(scenario), scenario.tensor_bytes)

    batched = Scenario("batched identity", IDENTITY_BATCHED, (1, IDENTITY_WIDTH))
    quick = [
        *map(exchange, (IDENTITY_64, SMALL, batched, IDENTITY_64, SMALL)),
        GrpcExchange("unknown model", grpc_infer("nobody", [IDENTITY_WIDTH], data), 0),
        *map(exchange, (IDENTITY_64, SMALL, batched)),
        GrpcExchange("too few bytes", grpc_infer(SMALL.model, SMALL.shape, data[:-4]), 0),
    ]
    return quick * QUICK_ROUNDS + [exchange(LARGE), exchange(IDENTITY_1MB)]


def assemble(peer: Peer) -> Crowd:
    """The connections; each is reopened after a few hundred answers."""
    crowd = Crowd(lifetime=500, keep_latencies=False)
    http = (HOST, int((peer.http_url or "").rpartition(":")[2]))
    authority = peer.grpc_address or ""
    grpc = (HOST, int(authority.rpartition(":")[2]))
    mixed, calls = http_exchanges(peer), grpc_exchanges()
    for _ in range(CONNECTIONS_EACH):
        crowd.join(http, lambda: HttpClient(mixed))
        crowd.join(grpc, lambda: GrpcClient(authority, calls))
    return crowd


def measure(peer: Peer, requests: int) -> Growth:
    """Runs the crowd and samples the worker's memory as it goes."""
    growth = Growth(requests)
    started = time.monotonic()
    last_said = [started]

    def sample(answered: int) -> None:
        growth.samples.append((answered, peer.resident_bytes()))
        if time.monotonic() - last_said[0] > 10:
            last_said[0] = time.monotonic()
            print(f"  {answered:,} answered, {growth.samples[-1][1] / 2**20:.1f} MiB", file=sys.stderr, flush=True)

    crowd = assemble(peer)
    try:
        tally: Tally = crowd.run(requests=requests, every_quarter_second=sample)
    finally:
        crowd.close()
    sample(tally.answered)
    growth.seconds = tally.seconds
    growth.failures = dict(tally.failures)
    return growth


def draw(growth: Growth, path: Path) -> None:
    """Memory over requests, with the line that growth is counted from."""
    figure, panel = pyplot.subplots(figsize=(10, 4), layout="constrained")
    answered, resident = zip(*growth.samples, strict=True)
    panel.plot([number / 1e3 for number in answered], [size / 2**20 for size in resident], linewidth=1)
    panel.axhline(growth.warm / 2**20, color="grey", linestyle=":", label="after warm-up")
    panel.axvline(WARM_UP_SHARE * growth.requests / 1e3, color="grey", linewidth=0.5)
    panel.set_xlabel("requests answered, thousands")
    panel.set_ylabel("resident memory, MiB")
    panel.set_ylim(bottom=0)
    panel.set_title(f"{growth.requests:,} mixed requests: {growth.percent:+.2f} % after warm-up")
    panel.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker.memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with isochrone_worker.start(write_onnx(given.results / "onnx")) as peer:
        growth = measure(peer, given.requests)
    print(f"\n{growth.requests:,} requests in {growth.seconds:.0f} s, {sum(growth.failures.values())} failures")
    for failure, count in list(growth.failures.items())[:10]:
        print(f"  {count} × {failure}")
    print(f"resident memory after warm-up {growth.warm / 2**20:.1f} MiB, at the end {growth.final / 2**20:.1f} MiB")
    met = growth.percent < LIMIT_PERCENT and not growth.failures
    print(f"  {'MET   ' if met else 'MISSED'}  growth under {LIMIT_PERCENT:g} %: {growth.percent:+.2f} %")
    path = given.results / "memory.json"
    document = asdict(growth) | {"percent": growth.percent, "machine": describe()}
    path.write_text(json.dumps(document, indent=1))
    draw(growth, path.with_suffix(".png"))
    print(f"written: {path} and .png")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
