"""``python -m bench.engines.ray_failures``: nodes of a three-node Ray cluster are lost under load, in three ways.

Each node has a network of its own, so that its cable can be cut; needs root. For every loss: how long callers felt it,
when Ray itself noticed, when the fleet had its full capacity again, and the failed requests. Afterwards, a strict
rollout across the nodes that are left, checked by its history. The exit status is 1 if a request failed, a rollout was
not done or a promise was broken. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.control.checker import check
from bench.control.etcd_cluster import EtcdCluster
from bench.control.fleet_run import Shape
from bench.control.history import OK, Answer
from bench.control.load import Load, Stream
from bench.control.machine_fleet import etcd_members
from bench.control.machines import Network
from bench.control.models import MODELS, PIPELINES, write_repository
from bench.control.rollout_log import RolloutLog
from bench.engines.node_watch import gone_at
from bench.engines.ray_cluster import RayNodes, places_of, watched_nodes
from bench.engines.ray_fleet import EDGE, RayFleet
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch

_NODES = ("node-1", "node-2", "node-3")
_STEADY_SECONDS, _SETTLE_SECONDS = 5.0, 3.0
_CAPACITY_SECONDS, _NOTICE_SECONDS = 180.0, 90.0
#: An answer counts as delayed by a loss if it took this many times the steady p99, and at least so many milliseconds.
_FACTOR, _LEAST_MS = 3.0, 50.0


@dataclass(frozen=True)
class Loss:
    """One lost node; milliseconds and seconds since the loss."""

    how: str
    workers_lost: int
    #: Until the last answer that was delayed.
    traffic_moved_ms: float
    #: The longest wait of one caller.
    longest_ms: float
    full_capacity_s: float
    #: None: not within the limit.
    ray_noticed_s: float | None
    requests: int
    failed: int


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def traffic_moved(history: Sequence[Answer], lost_ns: int, ends_ns: int) -> tuple[float, float]:
    """Milliseconds from a loss until the last delayed answer, and the longest answer."""
    steady = sorted(each.latency_ns for each in history if each.ended_ns < lost_ns)
    p99 = steady[int(0.99 * len(steady))] / 1e6 if steady else 0.0
    limit = max(_LEAST_MS, _FACTOR * p99) * 1e6
    after = [each for each in history if each.ended_ns >= lost_ns and each.started_ns < ends_ns]
    delayed = [each.ended_ns - lost_ns for each in after if each.latency_ns > limit]
    return max(delayed, default=0) / 1e6, max((each.latency_ns for each in after), default=0) / 1e6


def lose(fleet: RayFleet, node: str, how: str, fault: Callable[[str], None], watch: Path, directory: Path) -> Loss:
    address = fleet.cluster.places[node].address
    lost = [name for name, at in fleet.nodes_of_workers().items() if at == address]
    with Load(directory, fleet.gateways, (Stream("clients", rate=60.0),)) as load:
        time.sleep(_STEADY_SECONDS)
        lost_ns = time.monotonic_ns()
        fault(node)
        # Traffic is judged before processes start elsewhere: on few cores their start delays requests, too.
        moved_until = lost_ns + int(2e9)
        capacity = _wait(lambda: _is_whole(fleet, address), _CAPACITY_SECONDS, f"full capacity after {how}") - lost_ns
        say(f"{how}: full capacity after {capacity / 1e9:.1f} s")
        noticed = gone_at(watch, address, lost_ns)
        while noticed is None and time.monotonic_ns() < lost_ns + _NOTICE_SECONDS * 1e9:
            time.sleep(0.1)
            noticed = gone_at(watch, address, lost_ns)
    history = load.history()
    moved, longest = traffic_moved(history, lost_ns, moved_until)
    failed = [each for each in history if each.outcome != OK]
    for each in failed[:5]:
        say(f"  failed: {each}")
    return Loss(
        how,
        len(lost),
        moved,
        longest,
        capacity / 1e9,
        (noticed - lost_ns) / 1e9 if noticed is not None else None,
        len(history),
        len(failed),
    )


def roll_out(fleet: RayFleet, directory: Path, count: int) -> tuple[int, int, int]:
    """Strict rollouts: requests, failed ones, violations."""
    log = RolloutLog(int(fleet.api.status()["epoch"]), fleet.api.versions())
    with Load(directory, fleet.gateways, (Stream("clients", rate=60.0),)) as load:
        time.sleep(1.0)
        for number in range(count):
            asked = log.ask(time.monotonic_ns())
            asked.identity = fleet.api.start_rollout(dict.fromkeys(MODELS, str(2 - number % 2)), "strict")
            record = fleet.api.wait(asked.identity, 120.0, asked.see)
            if record["state"] != "done":
                raise RuntimeError(f"rollout {asked.identity}: {record}")
    history = load.history()
    violations = check(history, log.commits(fleet.api.rollouts()), PIPELINES)
    for each in violations[:10]:
        say(f"  violation: {each}")
    return len(history), sum(each.outcome != OK for each in history), len(violations)


def _is_whole(fleet: RayFleet, lost: str) -> bool:
    return lost not in fleet.nodes_of_workers().values() and fleet.capacity() == fleet.workers


def _wait(holds: Callable[[], bool], seconds: float, what: str) -> int:
    """When it held, on the monotonic clock in nanoseconds."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)
    return time.monotonic_ns()


def run(workers: int, rollouts: int, chosen: Sequence[str]) -> dict[str, object]:
    losses = []
    with ExitStack() as stack:
        directory = stack.enter_context(scratch("ray-failures"))
        network = stack.enter_context(Network([*_NODES, "etcd-1"]))
        places = [place for place in places_of(network) if place.name in _NODES]
        cluster = stack.enter_context(RayNodes(places, labels={places[0].name: EDGE}))
        etcd = stack.enter_context(EtcdCluster(directory / "etcd", etcd_members(network)))
        shape = Shape(workers=workers, gateways=2, controllers=2)
        repository = write_repository(directory / "models", 2)
        fleet = stack.enter_context(RayFleet(directory / "fleet", repository, shape, cluster, etcd))
        faults: dict[str, tuple[Callable[[str], None], Callable[[str], None]]] = {
            "raylet killed": (cluster.kill_raylet, lambda node: None),
            "node stopped": (cluster.stop_node, cluster.resume_node),
            "cable cut": (network.cut, network.join),
        }
        for number, how in enumerate(chosen):
            fault, undo = faults[how]
            node = _NODES[1 + number % 2]
            watch = directory / f"nodes-{number}"
            with watched_nodes(cluster, watch):
                losses.append(lose(fleet, node, how, fault, watch, directory / f"history-{number}"))
            # Ray gives up what it has lost: the machine joins again as a new node, and takes workers when it is needed.
            undo(node)
            cluster.remove(node)
            cluster.start(node)
            _spread_again(fleet, cluster.places[_NODES[1 + (number + 1) % 2]].address)
            time.sleep(_SETTLE_SECONDS)
        requests, failed, violations = roll_out(fleet, directory / "history-rollouts", rollouts)
    return {
        "machine": describe(),
        "losses": [asdict(each) for each in losses],
        "rollouts": {"strict": rollouts, "requests": requests, "failed": failed, "violations": violations},
    }


def _spread_again(fleet: RayFleet, address: str) -> None:
    """Workers on the node that is lost next: scaled down and up, SPREAD takes the emptiest node."""
    for workers in (2, fleet.workers):
        fleet.scale(workers)
        fleet.wait_capacity(120.0, workers)
    if address not in fleet.nodes_of_workers().values():
        say(f"  no worker runs on {address} now: its loss will show little")


def report(result: dict[str, object]) -> str:
    lines = ["| loss | workers | traffic moved | longest wait | Ray noticed | full capacity | requests | failed |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    losses: list[dict[str, float]] = result["losses"]  # type: ignore[assignment]
    for each in losses:
        noticed = f"{each['ray_noticed_s']:.1f} s" if each["ray_noticed_s"] is not None else "not yet"
        lines.append(
            f"| {each['how']} | {each['workers_lost']} | {each['traffic_moved_ms']:.0f} ms "
            f"| {each['longest_ms']:.0f} ms | {noticed} "
            f"| {each['full_capacity_s']:.1f} s | {each['requests']} | {each['failed']} |"
        )
    rollouts: dict[str, int] = result["rollouts"]  # type: ignore[assignment]
    lines.append(
        f"\n{rollouts['strict']} strict rollouts across nodes: {rollouts['requests']} requests, "
        f"{rollouts['failed']} failed, {rollouts['violations']} violations"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--rollouts", type=int, default=10, help="strict rollouts at the end")
    ways = ("raylet killed", "node stopped", "cable cut")
    parser.add_argument("--loss", action="append", choices=ways, help="may be repeated; default: all")
    given = parser.parse_args()
    result = run(given.workers, given.rollouts, given.loss or ways)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "ray_failures.json").write_text(json.dumps(result, indent=1))
    print(report(result))
    losses: list[dict[str, float]] = result["losses"]  # type: ignore[assignment]
    rollouts: dict[str, int] = result["rollouts"]  # type: ignore[assignment]
    return int(bool(rollouts["failed"] or rollouts["violations"] or any(each["failed"] for each in losses)))


if __name__ == "__main__":
    sys.exit(main())
