"""`python -m bench.worker.deadlines`: Poisson arrivals with a 10 ms deadline, from half to twice the capacity.

Our worker and real Triton (with a queue timeout of the same length) take turns point by point; each is loaded in
percent of its own capacity, measured first. See bench/README.md.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.worker.conversations import http_bytes
from bench.worker.deadline_points import Point, summarise
from bench.worker.deadline_report import Run, draw, print_report, write_json
from bench.worker.generator import Generator, poisson_schedule
from bench.worker.machine import RESULTS, at_real_time_priority
from bench.worker.models import write_onnx
from bench.worker.peers import Peer, PeerUnavailable, isochrone_worker, triton
from bench.worker.scenarios import LARGE, http_request
from bench.worker.stalls import StallProbe, steal_seconds

PERCENTS = (50, 70, 90, 100, 120, 150, 200)
CONNECTIONS = 512
#: Triton reports an expired queue wait as 503; counting it as a rejection, not as an admitted miss, is in its favour.
REFUSALS = {"isochrone": {429, 503}, "triton": {429, 503, 504}}


@dataclass
class Contender:
    """A server with its generator and the request it gets.

    Triton's queue timeout would reject a part of the closed loop that measures its capacity (a batch of 32 takes
    longer than 10 ms): a second Triton without one, idle otherwise, is measured for that.
    """

    peer: Peer
    generator: Generator
    unlimited: Generator
    plain: bytes
    with_deadline: bytes
    closed_capacity: float = 0.0
    open_capacity: float = 0.0

    def offer(self, percent: float, rate: float, seconds: float, seed: int, deadline_ms: float) -> Point:
        """One stretch of open-loop load."""
        outcome = self.generator.open_loop(self.with_deadline, poisson_schedule(rate, seconds, seed))
        return summarise(self.peer.name, percent, outcome, deadline_ms, REFUSALS[self.peer.name])

    def closed_loop_rate(self, seconds: float) -> float:
        """Answers per second with 32 in flight and no deadline."""
        self.unlimited.closed_loop(self.plain, 32, min(1.0, seconds / 2))
        started = time.monotonic()
        outcome = self.unlimited.closed_loop(self.plain, 32, seconds)
        elapsed = time.monotonic() - started
        return sum(status == 200 for status in outcome.status) / elapsed

    def open_loop_rate(self, seconds: float, deadline_ms: float, steps: int) -> float:
        """The highest rate at which 99 % of everything offered is answered in time, by bisection."""
        low, high = 0.2 * self.closed_capacity, 1.2 * self.closed_capacity
        for step in range(steps):
            rate = (low + high) / 2
            point = self.offer(0, rate, seconds, 1000 + step, deadline_ms)
            held = point.in_time >= 0.99 * point.offered
            say(f"  {self.peer.name}: {rate:,.0f}/s offered: {point.in_time / point.offered:.2%} in time")
            low, high = (rate, high) if held else (low, rate)
        return low


def contender(peer: Peer, unlimited: Peer, deadline_ms: float, stack: ExitStack) -> Contender:
    """Connects generators to a running server, and to the one its capacity is measured on."""
    request = http_request(peer, LARGE)
    host = (peer.http_url or "").removeprefix("http://")
    generators = Generator(peer.http_url or "", CONNECTIONS), Generator(unlimited.http_url or "", 32)
    for generator in generators:
        stack.callback(generator.close)
    return Contender(
        peer,
        *generators,
        http_bytes(request, host),
        # Triton ignores the header; its queue policy is its deadline.
        http_bytes(request, host, f"x-request-timeout-ms: {deadline_ms:g}\r\n"),
    )


def start(name: str, onnx_files: Mapping[str, Path], deadline_ms: float, stack: ExitStack) -> Contender:
    """Starts a server for as long as the stack lives; raises PeerUnavailable with the reason."""
    if name == "isochrone":
        worker = stack.enter_context(isochrone_worker.start(onnx_files))
        return contender(worker, worker, deadline_ms, stack)
    timeout = round(deadline_ms * 1000)
    limited = stack.enter_context(triton.start(onnx_files, queue_timeout_microseconds=timeout))
    return contender(limited, stack.enter_context(triton.start(onnx_files)), deadline_ms, stack)


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker.deadlines", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="per point and server")
    parser.add_argument("--deadline-ms", type=float, default=10.0)
    parser.add_argument("--percents", default=",".join(map(str, PERCENTS)))
    parser.add_argument("--servers", default="isochrone,triton")
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often the curve is measured; the points of each round are kept"
    )
    parser.add_argument(
        "--capacity",
        choices=("closed", "open"),
        default="closed",
        help="which capacity 100 %% means: closed loop at 32 in flight, or the highest open-loop rate answered in time",
    )
    parser.add_argument(
        "--real-time",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the generator at real-time priority, where that is permitted",
    )
    parser.add_argument("--quick", action="store_true", help="one second per point: does everything still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.quick:
        given.seconds = 1.0
    given.percents = [float(percent) for percent in given.percents.split(",")]
    given.servers = given.servers.split(",")
    if unknown := sorted(set(given.servers) - set(REFUSALS)):
        parser.error(f"--servers: expected some of {', '.join(REFUSALS)}, given {', '.join(unknown)}")
    return given


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    given = arguments()
    onnx_files = write_onnx(given.results / "onnx")
    steal_before = steal_seconds()
    run = Run(deadline_ms=given.deadline_ms, seconds=given.seconds, capacity_kind=given.capacity)
    with StallProbe() as probe, ExitStack() as stack:
        contenders: list[Contender] = []
        for name in given.servers:
            try:
                contenders.append(start(name, onnx_files, given.deadline_ms, stack))
            except PeerUnavailable as error:
                say(f"{name}: left out: {error}")
        # The generator shares two cores with the servers: what it sends late, no server can answer in time.
        run.generator_is_real_time = given.real_time and at_real_time_priority(5)
        trial = min(2.0, given.seconds)
        for one in contenders:
            one.closed_capacity = one.closed_loop_rate(2 * trial)
            say(f"{one.peer.name} {one.peer.version}: closed loop, 32 in flight: {one.closed_capacity:,.0f}/s")
            one.open_capacity = one.open_loop_rate(trial, given.deadline_ms, 3 if given.quick else 6)
            run.closed_capacity[one.peer.name] = [one.closed_capacity]
            run.open_capacity[one.peer.name] = one.open_capacity
            run.versions[one.peer.name] = one.peer.version
        for number in range(given.rounds):
            for percent in given.percents:
                for one in contenders:
                    capacity = one.closed_capacity if given.capacity == "closed" else one.open_capacity
                    seed = 17 * number + int(percent)
                    point = one.offer(percent, capacity * percent / 100, given.seconds, seed, given.deadline_ms)
                    run.points.append(point)
                    say(f"{one.peer.name} at {percent:g} %: {point.in_time} of {point.admitted} admitted in time")
        for one in contenders:
            # Measured again at the end: the drift between the two bounds what "percent of capacity" can mean here.
            run.closed_capacity[one.peer.name].append(one.closed_loop_rate(2 * trial))
    run.stalls = probe.stalls
    run.steal_seconds = steal_seconds() - steal_before
    print_report(run)
    name = "deadlines-quick" if given.quick else "deadlines"
    write_json(run, given.results / f"{name}.json")
    draw(run, given.results / f"{name}.png")
    print(f"\nwritten: {given.results / name}.json and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
