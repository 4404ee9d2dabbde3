"""`python -m bench.gateway.antagonists`: four real workers, one of them starved of CPU, then stopped, then killed.

Poisson arrivals (open loop, latency from the instant a request was due) through our gateway under each policy in turn,
and through Envoy with least_request, outlier detection, health checks and retries. The workers sleep rather than
compute, since all of this shares two cores: see `fleet.py`. See bench/README.md.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from bench.gateway.antagonist_report import PhaseFigure, Run, figures, print_report, write_json
from bench.gateway.bystanders import warning
from bench.gateway.fleet import MODEL, Fleet, Service
from bench.gateway.proxies import envoy, isochrone_gateway
from bench.gateway.proxies.upstream import Upstream
from bench.gateway.troubles import PHASES, Troubles
from bench.worker.conversations import http_bytes
from bench.worker.generator import Generator, poisson_schedule
from bench.worker.machine import RESULTS
from bench.worker.models import IDENTITY_WIDTH
from bench.worker.payloads import http_infer
from bench.worker.peers import Peer, PeerUnavailable
from bench.worker.scenarios import IDENTITY_64

WORKERS = 4
#: Without policies that need a key (consistent_hash, maglev): this load has none.
POLICIES = (
    *("round_robin", "random", "least_connections", "power_of_two", "least_pending", "token_bucket"),
    *("latency_weighted", "peak_ewma", "prequal", "learned"),
)
ENVOY = "envoy"
#: Enough connections that a proxy which keeps the requests of a stopped worker does not exhaust the generator.
CONNECTIONS = 1024

Start = Callable[[Sequence[Upstream]], AbstractContextManager[Peer]]


def starter(contender: str, deadline_ms: float) -> Start:
    """How a contender is started: Envoy, or our gateway with the policy of that name."""
    if contender == ENVOY:
        rules = envoy.Resilience(timeout_seconds=deadline_ms / 1000)
        return lambda upstreams: envoy.start(upstreams, rules)
    return lambda upstreams: isochrone_gateway.start(upstreams, contender, model=MODEL)


def request_bytes(url: str, deadline_ms: float) -> bytes:
    """One infer of the sleeping model with its deadline; Envoy ignores the header, its route has the same timeout."""
    infer = http_infer(MODEL, (1, IDENTITY_WIDTH), IDENTITY_64.tensor().tobytes())
    return http_bytes(infer, url.removeprefix("http://"), f"x-request-timeout-ms: {deadline_ms:g}\r\n")


def measure(proxy: Peer, fleet: Fleet, given: argparse.Namespace, seed: int) -> dict[str, PhaseFigure]:
    """All phases under one contender. The last worker is the victim."""
    url = proxy.http_url or ""
    request = request_bytes(url, given.deadline_ms)
    rate = fleet.requests_per_second * given.load
    with ExitStack() as stack:
        generator = Generator(url, CONNECTIONS)
        stack.callback(generator.close)
        # Connections are opened and latencies learnt before measurements start.
        generator.open_loop(request, poisson_schedule(rate, given.warm_up, seed + 1))
        schedule = poisson_schedule(rate, given.phase_seconds * len(PHASES), seed)
        before, started = proxy.cpu_seconds(), time.monotonic()
        with Troubles(fleet.workers[-1], given.phase_seconds) as troubles:
            outcome = generator.open_loop(request, schedule)
        proxy_share = (proxy.cpu_seconds() - before) / (time.monotonic() - started)
    return figures(outcome, troubles, given.deadline_ms, proxy_share)


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    names = (*POLICIES, ENVOY)
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.antagonists", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--phase-seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds of load before the first phase")
    parser.add_argument("--load", type=float, default=0.5, help="share of what the four workers can do")
    parser.add_argument("--service-ms", type=float, default=5.0, help="mean service time; each is ± 50 %%")
    parser.add_argument("--instances", type=int, default=2, help="requests a worker serves at once")
    parser.add_argument("--deadline-ms", type=float, default=1000.0)
    parser.add_argument("--contenders", default=",".join(names), help=f"{ENVOY}, or policies of our gateway")
    parser.add_argument("--quick", action="store_true", help="one round, a second a phase: does everything still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.contenders = given.contenders.split(",")
    if given.quick:
        given.rounds, given.phase_seconds, given.warm_up = 1, 1.0, 0.5
    return given


def say(text: str) -> None:
    """Print progress, separate from the report."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    given = arguments()
    if busy := warning():
        say(busy)
    started = time.monotonic()
    run = Run(settings={name: value for name, value in vars(given).items() if name != "results"})
    with Fleet(WORKERS, Service(given.service_ms, 0.5, given.instances)) as fleet:
        say(f"{WORKERS} workers; {fleet.requests_per_second * given.load:,.0f} requests/s")
        for number in range(given.rounds):
            turn = number % len(given.contenders)
            for contender in given.contenders[turn:] + given.contenders[:turn]:
                if contender in run.unavailable:
                    continue
                fleet.replace_dead()
                try:
                    with starter(contender, given.deadline_ms)(fleet.upstreams) as proxy:
                        found = measure(proxy, fleet, given, seed=31 * number)
                except PeerUnavailable as error:
                    run.unavailable[contender] = str(error)
                    say(f"{contender}: left out: {error}")
                    continue
                run.add(contender, found)
                line = ", ".join(f"{phase} {one.p99_ms:.0f} ms/{one.failed}" for phase, one in found.items())
                say(f"round {number + 1} {contender:18} p99/failed: {line}")
    run.seconds = time.monotonic() - started
    print_report(run)
    path = given.results / ("gateway-antagonists-quick.json" if given.quick else "gateway-antagonists.json")
    write_json(run, path)
    print(f"\n{run.seconds:.0f} s; written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
