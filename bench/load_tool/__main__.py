"""`python -m bench.load_tool`: do the figures of `isochrone bench` agree with those of other generators?

One worker with a model that sleeps. In turns, round by round: a closed loop by wrk (HTTP) or h2load (gRPC) and by
`isochrone bench`; an open loop by `bench.worker.generator`, which shares no code with it, and by `isochrone bench`,
both with Poisson arrivals. Then ramps. See bench/README.md.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.ports import free_ports
from bench.worker.generator import Generator, poisson_schedule
from bench.worker.load import grpc_load, grpc_rate, http_load
from bench.worker.machine import RESULTS, describe
from bench.worker.models import INPUT, OUTPUT
from bench.worker.peers import Peer
from bench.worker.peers.process import HOST, answers, installed_version, running, scratch
from bench.worker.scenarios import Scenario, http_request

MODEL = Scenario("sleeping", "sleeping", (1, 16))
#: Of one run; several instances run side by side.
SLEEP_MS = 2
INSTANCES = 4
IN_FLIGHT = (1, 8, 32)

_CONFIG = f"""
name: "{MODEL.model}"
backend: "python"
max_batch_size: 1
input {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [16] }}
output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [16] }}
instance_group {{ count: {INSTANCES} }}
"""
_CODE = f"""
import time


class Model:
    def infer(self, inputs):
        time.sleep({SLEEP_MS / 1000})
        return {{"{OUTPUT}": inputs["{INPUT}"]}}
"""


@contextmanager
def worker() -> Iterator[Peer]:
    python = Path(sys.executable)
    with scratch("load-tool") as directory:
        files = directory / "models" / MODEL.model
        (files / "1").mkdir(parents=True)
        (files / "config.pbtxt").write_text(textwrap.dedent(_CONFIG).lstrip())
        (files / "1" / "model.py").write_text(textwrap.dedent(_CODE).lstrip())
        http_port, grpc_port = free_ports(2)
        url = f"http://{HOST}:{http_port}"
        log = directory / "isochrone.log"
        command: list[str | Path] = [
            *(python.parent / "isochrone", "serve", directory / "models", "--host", HOST, "--no-allow-metrics"),
            *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        ]
        with running("isochrone", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
            version = installed_version(python, "isochrone")
            address = f"{HOST}:{grpc_port}"
            yield Peer("isochrone", version, pid, log, (MODEL.model,), http_url=url, grpc_address=address)


def ours(peer: Peer, transport: str, *words: str) -> dict[str, Any]:
    """The figures of `isochrone bench`."""
    url = peer.http_url if transport == "http" else f"grpc://{peer.grpc_address}"
    program = str(Path(sys.executable).with_name("isochrone"))
    command = [program, "bench", str(url), "--model", MODEL.model, "--json", *words]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not finished.stdout:
        sys.exit(f"bench.load_tool: {finished.stderr.strip()}")
    figures: dict[str, Any] = json.loads(finished.stdout)
    return figures


def closed_loop(peer: Peer, transport: str, in_flight: int, seconds: float, directory: Path) -> tuple[float, float]:
    """Requests per second of the other generator and of ours."""
    if transport == "http":
        theirs = http_load(peer, MODEL, in_flight, seconds, directory).requests_per_second
    else:
        requests = max(in_flight, round(grpc_rate(peer, MODEL, in_flight, directory) * seconds))
        theirs = grpc_load(peer, MODEL, in_flight, requests, directory).requests_per_second
    connections = ("--connections", "1") if transport == "grpc" else ()
    words = ("--concurrency", str(in_flight), "--seconds", f"{seconds:g}", "--warmup-seconds", "0.5", *connections)
    return theirs, ours(peer, transport, *words)["total"]["rate"]


def open_loop(peer: Peer, rate: float, seconds: float, seed: int) -> tuple[float, float]:
    """The p99 in ms of the independent generator and of ours."""
    request = http_request(peer, MODEL)
    address = (peer.http_url or "").removeprefix("http://")
    fields = {"Host": address, **request.headers, "Content-Length": str(len(request.body))}
    head = f"POST {request.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    generator = Generator(str(peer.http_url), 256)
    try:
        outcome = generator.open_loop(head.encode() + b"\r\n" + request.body, poisson_schedule(rate, seconds, seed))
    finally:
        generator.close()
    latencies = np.array(outcome.answered) - np.array(outcome.scheduled)
    theirs = float(np.percentile(latencies, 99, method="inverted_cdf")) / 1e6
    words = ("--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--warmup-seconds", "0.5", "--seed", str(seed))
    return theirs, ours(peer, "http", *words)["total"]["latency_ms"]["p99"]["value"]


def show(name: str, pairs: list[tuple[float, float]], unit: str) -> None:
    ratios = [mine / other for other, mine in pairs]
    others, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}–{max(ratios):.3f}]"
    print(f"{name:28} other {others:10,.2f} {unit}   isochrone bench {mine:10,.2f} {unit}   ratio {spread}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.load_tool", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one figure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="figures of every cell (default: %(default)s)")
    parser.add_argument("--ramps", type=int, default=3, help="ramps (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of one second, no ramp")
    given = parser.parse_args()
    seconds, rounds, ramps = (1.0, 1, 0) if given.quick else (given.seconds, given.rounds, given.ramps)
    for tool in ("wrk", "h2load"):
        if shutil.which(tool) is None:
            sys.exit(f"bench.load_tool: {tool} is not installed")
    results: dict[str, Any] = {"machine": describe(), "seconds": seconds, "rounds": rounds}
    with worker() as peer, scratch("load-tool-files") as directory:
        for transport in ("http", "grpc"):
            for in_flight in IN_FLIGHT:
                pairs = [closed_loop(peer, transport, in_flight, seconds, directory) for _ in range(rounds)]
                name = f"closed loop {transport} ×{in_flight}"
                show(name, pairs, "requests/s")
                results[name] = pairs
        capacity = INSTANCES * 1000 / SLEEP_MS
        for share in (0.3, 0.6):
            pairs = [open_loop(peer, capacity * share, seconds, seed) for seed in range(rounds)]
            name = f"open loop p99 at {capacity * share:g}/s"
            show(name, pairs, "ms")
            results[name] = pairs
        limits = []
        for number in range(ramps):
            words = (
                "--slo",
                "p99<20ms",
                "--ramp",
                "--rate",
                "100",
                "--warmup-seconds",
                "0.5",
                "--seed",
                str(100 * number),
            )
            figures = ours(peer, "http", *words, "--seconds", f"{seconds:g}")["ramp"]
            limits.append(figures["rate"])
            print(f"ramp {number + 1}: {figures['verdict']}", flush=True)
        results["ramps"] = limits
    path = RESULTS / "load_tool.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
