"""``python -m bench.control.faults``: random faults at random points of random rollouts, from a seed.

Clients send load through all gateways all the time and record every answer; at its end the history is checked. With
SQLite, processes are killed and stopped; with etcd its members too; with ``--namespaces`` each process has a network of
its own and is also cut off. The exit status is 1 if any promise was broken. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.control.checker import check, undecidable
from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fault_driver import FaultDriver
from bench.control.fault_plan import VERSIONS, plan
from bench.control.fault_report import as_json, reasons, recoveries, summary, table
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.history import OK
from bench.control.load import Load, Stream
from bench.control.machine_fleet import MachineFleet, etcd_members, machine_names
from bench.control.machines import Network
from bench.control.models import PIPELINES, Service, write_repository
from bench.control.rollout_log import RolloutLog
from bench.control.running_fleet import CONTROLLER, ETCD, GATEWAY, WORKER, RunningFleet
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch

_MOST_SHOWN = 20


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def fleet_of(given: argparse.Namespace, directory: Path) -> Iterator[RunningFleet]:
    """The requested fleet, with its store."""
    repository = write_repository(directory / "models", VERSIONS, Service(given.service_ms, 0.5))
    shape = Shape(given.workers, given.gateways, given.controllers, lease_seconds=given.lease_seconds)
    with ExitStack() as stack:
        if given.namespaces:
            network = stack.enter_context(Network(list(machine_names(shape, given.members))))
            etcd = stack.enter_context(EtcdCluster(directory / "etcd", etcd_members(network)))
            yield stack.enter_context(MachineFleet(directory / "fleet", repository, shape, network, etcd))
        elif given.store == "etcd":
            etcd = stack.enter_context(EtcdCluster(directory / "etcd", loopback_members(given.members)))
            yield stack.enter_context(SupervisedFleet(directory / "fleet", repository, shape, etcd))
        else:
            yield stack.enter_context(SupervisedFleet(directory / "fleet", repository, shape))


def streams(given: argparse.Namespace) -> list[Stream]:
    """Most of the load over HTTP, a tenth through the stock gRPC client."""
    http = [Stream(f"http-{n + 1}", rate=0.45 * given.rate, retry=n == 0) for n in range(2)]
    return [*http, Stream("grpc-1", rate=0.1 * given.rate, transport="grpc")]


def run(given: argparse.Namespace, directory: Path) -> int:
    began = time.monotonic()
    with fleet_of(given, directory) as fleet:
        say(f"the fleet serves after {time.monotonic() - began:.1f} s; seed {given.seed}")
        status = fleet.api.status()
        log = RolloutLog(status["epoch"], fleet.api.versions())
        roles = {role: len(fleet.of(role)) for role in (WORKER, GATEWAY, CONTROLLER, ETCD)}
        driver = FaultDriver(fleet, log, say)
        load = Load(directory / "history", fleet.gateways, streams(given), given.seed)
        with load:
            course = driver.run(plan(given.seed, given.faults, roles, can_cut=fleet.can_cut))
            time.sleep(1.0)  # so that the last fault, too, has answers after it
        records = fleet.api.rollouts()
        history = load.history()
        commits = log.commits(records)
    violations = check(history, commits, PIPELINES)
    rows = recoveries(course, history, fleet.gateways)
    print(table(rows))
    print(f"\n{summary(rows)}\n")
    states = [asked.state or "refused" for asked in course.rollouts.values()]
    print(f"{len(rows)} faults over {len(states)} rollouts: " + _counted(states))
    print(f"{len(history)} requests, {sum(one.outcome == OK for one in history)} answered; explicit errors:")
    for reason, count in reasons(history).most_common(10):
        print(f"  {count:6d}  {reason}")
    if hidden := undecidable(commits, PIPELINES):
        print(f"strict epochs the checker cannot hold anybody to: {hidden}")
    print(f"violations: {len(violations)}; stuck: {len(course.stuck)}; seed {given.seed}")
    for sentence in [*map(str, violations[:_MOST_SHOWN]), *course.stuck]:
        print(f"  {sentence}")
    _write(given, {"settings": _settings(given), "machine": describe(), **as_json(rows, violations, course)})
    return 1 if violations or course.stuck else 0


def _counted(words: list[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))


def _settings(given: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(given).items() if not isinstance(value, Path)}


def _write(given: argparse.Namespace, document: dict[str, object]) -> None:
    kind = "namespaces" if given.namespaces else given.store
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / f"control-faults-{kind}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten: {path}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same rollouts and faults")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--store", choices=("sqlite", "etcd"), default="sqlite")
    parser.add_argument("--members", type=int, default=3, help="of etcd")
    parser.add_argument(
        "--namespaces", action="store_true", help="a network for each process, and cuts; etcd; needs root"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--controllers", type=int, default=2)
    parser.add_argument("--lease-seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=150.0, help="requests a second, all clients together")
    parser.add_argument("--service-ms", type=float, default=2.0)
    parser.add_argument("--keep", type=Path, help="directory for logs and histories; else they are removed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="twelve faults: does everything still work?")
    given = parser.parse_args()
    if given.quick:
        given.faults = 12
    return given


def main() -> int:
    given = arguments()
    if given.keep is not None:
        return run(given, given.keep.resolve())
    with scratch("faults") as directory:
        return run(given, directory)


if __name__ == "__main__":
    sys.exit(main())
