"""`python -m bench.gateway.request_times`: what counting latencies costs a gateway per request.

A gateway's shell and request machine with a codec that sends and answers nothing: no sockets, one worker. Rounds of
requests are counted (without an agent, of 50 agents, of agents that each come once) and not counted, in turn, by the
thread's own time. In the interpreted build a round that is not counted runs the same code without the calls that count.
Compiled code does not let them be taken out: there the counting alone is timed. The difference is to be seen beside
what a whole request costs a gateway, sockets included (`python -m bench.gateway.hop`). See bench/README.md.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.worker.machine import RESULTS, describe
from isochrone.build_info import IS_COMPILED
from isochrone.clock import now_ns
from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.latencies.agents import AgentLatencies
from isochrone.gateway.request_times import RequestTimes
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits

AGENTS = tuple(f"agent-{number}" for number in range(50))


class NoCodec(CallerRequest):
    """A request that goes nowhere, and is answered at once."""

    last: Any = None

    def __init__(self, gateway: Gateway, served: Any, agent: str) -> None:
        Request.__init__(self, now_ns())
        self.gateway = gateway
        self.served = served
        self.demand = served.plain_demand
        if agent:
            self.agent = agent

    def send(self, attempt: UpstreamAttempt) -> None:
        self.last = attempt

    def outcome(self, attempt: UpstreamAttempt) -> Outcome:
        return Outcome.ANSWERED

    def answer(self, attempt: UpstreamAttempt) -> None: ...

    def load_report(self, attempt: UpstreamAttempt) -> None:
        return None

    def is_version_gone(self, attempt: UpstreamAttempt) -> bool:
        return False

    def is_late(self, attempt: UpstreamAttempt) -> bool:
        return False

    def _never(self, *arguments: Any) -> Any:
        raise NotImplementedError

    reject = cut_off = copy = offer = _never  # type: ignore[assignment]
    streams_answer = begin_streaming = pass_on = _never  # type: ignore[assignment]


def scene() -> tuple[Gateway, Any]:
    """A gateway with one healthy worker that serves one model."""
    gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
    fleet = gateway.fleet
    fleet.set_members([Upstream("a", 1, 1)])
    member = fleet.members["a:1"]
    member.endpoint.healthy = True
    member.endpoint.joined_at = -(10**18)
    member.serves = {"m": {"1": ""}}
    fleet.rebuild()
    return gateway, fleet.model("m")


def requests(gateway: Gateway, served: Any, agent: Callable[[int], str], count: int) -> float:
    """ns of the thread per request, through the shell."""
    made = [NoCodec(gateway, served, agent(number)) for number in range(count)]
    gc.collect()
    gc.disable()
    started = time.thread_time_ns()
    for request in made:
        gateway.arrive(request)
        gateway.answered(request.last)
    taken = time.thread_time_ns() - started
    gc.enable()
    return taken / count


def counting(gateway: Gateway, served: Any, agent: Callable[[int], str], count: int) -> float:
    """The same of the counting alone."""
    times = RequestTimes(gateway.fleet)
    made = [NoCodec(gateway, served, agent(number)) for number in range(count)]
    for request in made:
        gateway.arrive(request)
        gateway.answered(request.last)
    pairs = [(request, request.last) for request in made]
    gc.collect()
    gc.disable()
    started = time.thread_time_ns()
    for request, attempt in pairs:
        times.answered(request, attempt, now_ns())
    taken = time.thread_time_ns() - started
    gc.enable()
    return taken / count


class NotCounting(RequestTimes):
    """Takes every call and does nothing."""

    def answered(self, request: Any, attempt: Any, now: int) -> None: ...

    def rejected(self, request: Any, error: Any, now: int) -> None: ...

    def cancelled(self, request: Any, now: int) -> None: ...


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.request_times", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=5000, help="per round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    invented = iter(range(1 << 60))
    kinds: dict[str, Callable[[int], str]] = {
        "no agent": lambda number: "",
        "50 agents": lambda number: AGENTS[number % len(AGENTS)],
        "invented agents": lambda number: f"invented-{next(invented)}",
    }
    gateway, served = scene()
    figures: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for kind, agent in kinds.items():
            gateway.fleet.agents = AgentLatencies()
            counted = figures.setdefault(f"counted, {kind}", [])
            counted.append(requests(gateway, served, agent, given.requests))
            figures.setdefault(f"counting alone, {kind}", []).append(counting(gateway, served, agent, given.requests))
            if not IS_COMPILED:
                kept, gateway.times = gateway.times, NotCounting(gateway.fleet)
                figures.setdefault(f"not counted, {kind}", []).append(requests(gateway, served, agent, given.requests))
                gateway.times = kept
    build = "compiled" if IS_COMPILED else "interpreted"
    print(f"ns of the thread per request, {build}: median of {given.rounds} rounds (lowest, highest)")
    for name, found in figures.items():
        print(f"{name:34}{statistics.median(found):10.0f} ({min(found):.0f}, {max(found):.0f})")
    for kind in kinds if not IS_COMPILED else ():
        pairs = zip(figures[f"counted, {kind}"], figures[f"not counted, {kind}"], strict=True)
        print(f"{kind}: {statistics.median(one / other for one, other in pairs):.3f} times as long when counted")
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / f"request_times_{build}.json"
    settings = {"rounds": given.rounds, "requests": given.requests}
    record = {"machine": describe(), "settings": settings, "ns_per_request": figures}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
