"""``python -m bench.control.rollouts``: a hundred rollouts under load, fast and strict in turn, every answer checked.

Two gateways, four workers, clients over HTTP and gRPC at 70 % of a closed loop's throughput. Reports failed requests,
violations, the pause that strict adds, and the p99 during rollouts beside the steady one of the moments between them.
The exit status is 1 if a request failed, a rollout was not done or a promise was broken. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench.control.checker import FAST, STRICT, check, undecidable
from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fault_plan import VERSIONS
from bench.control.fault_report import reasons
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.history import OK
from bench.control.load import Load, Stream
from bench.control.models import CHAIN, PIPELINES, SOLO, STAGES, Service, write_repository
from bench.control.rollout_log import Asked, RolloutLog
from bench.control.rollout_report import Switch, make_report
from bench.gateway.bystanders import warning
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import HOST, scratch

_CHANGES = ((SOLO,), (CHAIN, *STAGES), STAGES, (SOLO, CHAIN, *STAGES))
_HELD = re.compile(r"^isochrone_gateway_hold_seconds_(sum|count)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)
_SETTLE_SECONDS = 2.0


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


class HoldMeter:
    """How long gateways held requests back, from their metrics pages."""

    def __init__(self, fleet: SupervisedFleet) -> None:
        first = fleet.ports["metrics"]
        self._pages = [f"http://{HOST}:{first + index}/metrics" for index in range(fleet.shape.gateways)]
        self._before = self._read()

    def since_last(self) -> float | None:
        """Seconds the slowest gateway held requests back since the last call; None: none says."""
        now = self._read()
        held = [after[0] - before[0] for before, after in zip(self._before, now, strict=True) if after[1] > before[1]]
        self._before = now
        return max(held, default=None)

    def _read(self) -> list[tuple[float, float]]:
        totals = []
        for page in self._pages:
            text = httpx.get(page, timeout=5.0, trust_env=False).text
            found = {"sum": 0.0, "count": 0.0}
            for kind, value in _HELD.findall(text):
                found[kind] += float(value)
            totals.append((found["sum"], found["count"]))
        return totals


def streams(rate: float) -> list[Stream]:
    """Most of the load over HTTP, a tenth through the stock gRPC client."""
    return [
        Stream("http-1", rate=0.45 * rate),
        Stream("http-2", rate=0.45 * rate),
        Stream("grpc-1", rate=0.1 * rate, transport="grpc"),
    ]


def capacity(fleet: SupervisedFleet, directory: Path, in_flight: int, seconds: float) -> float:
    """Answers per second in a closed loop of the same mixture."""
    load = Load(directory, fleet.gateways, [Stream("closed", in_flight=in_flight, seconds=seconds)])
    with load:
        load.wait(seconds + 60)
    good = sorted(answer.ended_ns for answer in load.history() if answer.outcome == OK)
    # The first fifth warms up.
    part = good[len(good) // 5 :]
    return (len(part) - 1) / ((part[-1] - part[0]) / 1e9)


def one_rollout(fleet: SupervisedFleet, log: RolloutLog, number: int) -> Asked:
    cutover = STRICT if number % 2 else FAST
    changes = dict.fromkeys(_CHANGES[(number // 2) % len(_CHANGES)], str(1 + (number + 1) % VERSIONS))
    asked = log.ask(time.monotonic_ns())
    identity = fleet.api.start_rollout(changes, cutover)
    fleet.api.wait(identity, seen=asked.see)
    if asked.state != "done":
        say(f"rollout {number + 1} ({cutover}) {asked.state}: {asked.record.get('reason', '')}")
    return asked


def switch_of(asked: Asked, held: float | None) -> Switch | None:
    """A rollout that was done; its own record has the instants, in seconds since 1970."""
    if asked.state != "done" or asked.ended_ns is None:
        return None
    offset = time.time_ns() - time.monotonic_ns()
    since = {state: int(at * 1e9) - offset for state, at in asked.record.get("since", {}).items()}
    committed = since.get("draining", asked.settled_ns or asked.ended_ns)
    cutover = str(asked.record.get("cutover", FAST))
    return Switch(cutover, asked.asked_ns, asked.ended_ns, since.get("switching", committed), committed, held)


def run(given: argparse.Namespace, directory: Path) -> int:
    repository = write_repository(directory / "models", VERSIONS, Service(given.service_ms, 0.25))
    shape = Shape(given.workers, given.gateways, given.controllers)
    with ExitStack() as stack:
        etcd = None
        if given.store == "etcd":
            etcd = stack.enter_context(EtcdCluster(directory / "etcd", loopback_members(given.members)))
        began = time.monotonic()
        fleet = stack.enter_context(SupervisedFleet(directory / "fleet", repository, shape, etcd))
        say(f"the fleet serves after {time.monotonic() - began:.1f} s")
        in_flight = 4 * given.workers * Service().instances
        whole = capacity(fleet, directory / "closed", in_flight, given.calibrate_seconds)
        rate = whole * given.percent / 100
        say(f"capacity {whole:.0f}/s in a closed loop of {in_flight}; load {rate:.0f}/s")
        log = RolloutLog(fleet.api.status()["epoch"], fleet.api.versions())
        meter = HoldMeter(fleet)
        load = Load(directory / "history", fleet.gateways, streams(rate))
        switches: list[Switch] = []
        with load:
            time.sleep(_SETTLE_SECONDS)
            since_ns = time.monotonic_ns()
            time.sleep(given.gap_seconds)
            for number in range(given.rollouts):
                asked = one_rollout(fleet, log, number)
                time.sleep(given.gap_seconds)
                # A gateway counts a hold once it is over: asked for after the gap, it is.
                if (switch := switch_of(asked, meter.since_last())) is not None:
                    switches.append(switch)
                if (number + 1) % 10 == 0:
                    say(f"{number + 1} rollouts")
        history = load.history()
        commits = log.commits(fleet.api.rollouts())
    violations = check(history, commits, PIPELINES)
    report = make_report(history, switches, given.rollouts, violations, since_ns)
    print(f"load {rate:.0f}/s, {given.percent:g} % of {whole:.0f}/s; store {given.store}")
    print("\n".join(report.lines()))
    for sentence in report.violations[:20]:
        print(f"  {sentence}")
    for reason, count in reasons(history).most_common(10):
        print(f"  failed {count:6d}  {reason}")
    if hidden := undecidable(commits, PIPELINES):
        print(f"strict epochs the checker cannot hold anybody to: {hidden}")
    settings = {name: value for name, value in vars(given).items() if not isinstance(value, Path)}
    document = {"settings": settings, "machine": describe(), "capacity": whole, **report.as_json()}
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / f"control-rollouts-{given.store}{'-quick' if given.quick else ''}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if report.failed or report.violations or report.done < report.rollouts else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control.rollouts", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--percent", type=float, default=70.0, help="of the closed loop's capacity")
    parser.add_argument("--calibrate-seconds", type=float, default=6.0)
    parser.add_argument("--gap-seconds", type=float, default=1.0, help="steady moments between rollouts")
    parser.add_argument("--store", choices=("sqlite", "etcd"), default="sqlite")
    parser.add_argument("--members", type=int, default=3, help="of etcd")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--controllers", type=int, default=2)
    # Long enough that two cores carry the load: shorter, the processes' own work would be the bottleneck.
    parser.add_argument("--service-ms", type=float, default=20.0)
    parser.add_argument("--keep", type=Path, help="directory for logs and histories; else they are removed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="eight rollouts: does everything still work?")
    given = parser.parse_args()
    if given.quick:
        given.rollouts, given.calibrate_seconds = 8, 3.0
    return given


def main() -> int:
    given = arguments()
    if busy := warning():
        say(busy)
    if given.keep is not None:
        return run(given, given.keep.resolve())
    with scratch("rollouts") as directory:
        return run(given, directory)


if __name__ == "__main__":
    sys.exit(main())
