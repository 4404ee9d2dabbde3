"""`python -m bench.gateway.overload`: twice the capacity of the workers, with deadlines and two priorities.

Poisson arrivals through our gateway over real workers whose model sleeps (see `fleet.py`); a fifth of the requests are
of high priority. Reports goodput as a share of capacity, the share of each class that was answered in time, and the
time until a rejection. Capacity is the throughput of a closed loop through the same gateway without deadlines, measured
before and after.
See bench/README.md.
"""

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.gateway.bystanders import warning
from bench.gateway.fleet import MODEL, Fleet, Service
from bench.gateway.overload_report import HIGH, LOW, Run, print_report, summarise_classes, write_json
from bench.gateway.proxies import isochrone_gateway
from bench.worker.conversations import http_bytes
from bench.worker.generator import Generator, Outcome, poisson_schedule
from bench.worker.machine import RESULTS
from bench.worker.models import IDENTITY_WIDTH, INPUT, OUTPUT
from bench.worker.payloads import HttpRequest
from bench.worker.peers import Peer
from bench.worker.scenarios import IDENTITY_64

PRIORITIES = {HIGH: 1, LOW: 2}
CONNECTIONS = 512


class MixedGenerator(Generator):
    """An open loop whose requests differ: number i of the schedule sends `kinds[choices[i]]`."""

    def __init__(self, url: str, connections: int, kinds: list[bytes]) -> None:
        super().__init__(url, connections)
        self._kinds = kinds
        self._choices: list[int] = []

    def mixed(self, choices: list[int], due_ns: list[int]) -> Outcome:
        """One request at each instant, of the kind chosen for it."""
        self._choices = choices
        try:
            return self.open_loop(b"", due_ns)
        finally:
            self._choices = []

    def _send(self, outcome: Outcome, number: int, request: bytes) -> None:
        super()._send(outcome, number, self._kinds[self._choices[number]] if self._choices else request)


def infer(priority: int) -> HttpRequest:
    """One infer with its priority in the parameters, as Triton's clients send it."""
    data = IDENTITY_64.tensor().tobytes()
    tensor = {
        "name": INPUT,
        "shape": [1, IDENTITY_WIDTH],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(data)},
    }
    document = {
        "parameters": {"priority": priority},
        "inputs": [tensor],
        "outputs": [{"name": OUTPUT, "parameters": {"binary_data": True}}],
    }
    header = json.dumps(document, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    return HttpRequest(f"/v2/models/{MODEL}/infer", header + data, headers)


def capacity(generator: Generator, request: bytes, in_flight: int, seconds: float) -> float:
    """Answers per second in a closed loop, no deadline."""
    generator.closed_loop(request, in_flight, min(1.0, seconds / 2))
    started = time.monotonic()
    outcome = generator.closed_loop(request, in_flight, seconds)
    elapsed = time.monotonic() - started
    return sum(status == 200 for status in outcome.status) / elapsed


def measure(gateway: Peer, fleet: Fleet, given: argparse.Namespace, run: Run, say_number: int) -> None:
    """One round: capacity, then each load in turn, then capacity again."""
    url = gateway.http_url or ""
    host = url.removeprefix("http://")
    deadline = f"x-request-timeout-ms: {given.deadline_ms:g}\r\n"
    kinds = [http_bytes(infer(PRIORITIES[name]), host, deadline) for name in (HIGH, LOW)]
    plain = http_bytes(infer(PRIORITIES[LOW]), host)
    # Twice as many in flight as are served at once keep every instance busy.
    in_flight = 2 * fleet.service.instances * len(fleet.workers)
    with ExitStack() as stack:
        generator = MixedGenerator(url, CONNECTIONS, kinds)
        stack.callback(generator.close)
        trial = min(3.0, given.seconds)
        before = capacity(generator, plain, in_flight, trial)
        for percent in given.percents:
            rate = before * percent / 100
            seed = 1000 * say_number + int(percent)
            schedule = poisson_schedule(rate, given.seconds, seed)
            high = np.random.default_rng(seed + 1).random(len(schedule)) < given.high_share
            cpu, started = (gateway.cpu_seconds(), fleet.cpu_seconds()), time.monotonic()
            outcome = generator.mixed([0 if one else 1 for one in high], schedule)
            elapsed = time.monotonic() - started
            shares = (gateway.cpu_seconds() - cpu[0]) / elapsed, (fleet.cpu_seconds() - cpu[1]) / elapsed
            point = summarise_classes(percent, outcome, high, given.deadline_ms, before, shares)
            run.points.append(point)
            say(f"round {say_number + 1}, {percent:g} %: goodput {point.goodput:.1%}, high {point.high_in_time:.2%}")
        run.capacity.append((before, capacity(generator, plain, in_flight, trial)))


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.overload", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="per point")
    parser.add_argument("--percents", default="80,100,200", help="of capacity")
    parser.add_argument("--workers", type=int, default=4)
    # Long enough that two cores carry twice the load: at 3 ms the processes' own work would be the bottleneck.
    parser.add_argument("--service-ms", type=float, default=10.0, help="service time, the same for every request")
    parser.add_argument("--instances", type=int, default=2, help="requests a worker serves at once")
    parser.add_argument("--deadline-ms", type=float, default=33.0)
    parser.add_argument("--high-share", type=float, default=0.2, help="share of requests of high priority")
    parser.add_argument("--policy", default="prequal")
    parser.add_argument("--quick", action="store_true", help="one round, two seconds a point: does it still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.percents = [float(percent) for percent in given.percents.split(",")]
    if given.quick:
        given.rounds, given.seconds = 1, 2.0
    return given


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    given = arguments()
    if busy := warning():
        say(busy)
    run = Run(settings={name: value for name, value in vars(given).items() if name != "results"})
    service = Service(given.service_ms, 0.0, given.instances, priority_levels=len(PRIORITIES))
    with Fleet(given.workers, service) as fleet:
        for number in range(given.rounds):
            with isochrone_gateway.start(fleet.upstreams, given.policy, model=MODEL) as gateway:
                measure(gateway, fleet, given, run, number)
    print_report(run)
    path = given.results / ("gateway-overload-quick.json" if given.quick else "gateway-overload.json")
    write_json(run, path)
    print(f"\nwritten: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
