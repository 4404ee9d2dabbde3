"""``python -m bench.control.canaries``: canaries judged on real processes under noise, and outputs compared.

Two gateways, four workers, open-loop load of many agents, a neighbour that burns CPU in bursts. In random order:
versions that are equal, that take 30 % longer, that fail 3 % of their requests. Then two whose outputs differ, within
the tolerance and beyond it. The exit status is 1 if a verdict is wrong, a request failed that no version was to fail,
an agent changed versions within a step or a promise was broken. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.control import canary_report
from bench.control.antagonist import Antagonist
from bench.control.canary_report import EQUAL, FAILING, SLOWER, Rollout
from bench.control.checker import check
from bench.control.fault_report import reasons
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.load import Load, Stream
from bench.control.models import PIPELINES, write_repository
from bench.control.rollout_log import RolloutLog
from bench.control.trial_models import SCORE, Scoring, write_score, write_score_version
from bench.gateway.bystanders import machine_cpu_seconds, warning
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch

_SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.2


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def streams(rate: float, agents: int) -> list[Stream]:
    """Most of the load over HTTP, a tenth through the stock gRPC client."""
    http = [Stream(f"http-{number}", rate=0.45 * rate, models=(SCORE,), agents=agents) for number in (1, 2)]
    return [*http, Stream("grpc-1", rate=0.1 * rate, transport="grpc", models=(SCORE,), agents=agents)]


class Trials:
    """The fleet's operator: writes versions, starts their rollouts, and keeps the outcomes."""

    def __init__(self, fleet: SupervisedFleet, repository: Path, given: argparse.Namespace) -> None:
        self._api = fleet.api
        self._repository = repository
        self._rule = rule(given)
        self._usual = Scoring(given.median_ms, given.sigma)
        self._kinds = {
            EQUAL: self._usual,
            SLOWER: replace(self._usual, median_ms=given.median_ms * given.slower),
            FAILING: replace(self._usual, fails=given.fails),
        }
        self._version = 1
        self.log = RolloutLog(fleet.api.status()["epoch"], fleet.api.versions())
        self.rollouts: list[Rollout] = []

    def canary(self, kind: str) -> Rollout:
        record, asked_ns, ended_ns = self._roll_out(self._kinds[kind], canary=self._rule)
        reason = record.get("reason") or self._passed(str(record["identity"]))
        offset = time.time_ns() - time.monotonic_ns()
        rollout = Rollout.of(kind, record, reason, asked_ns, ended_ns, offset)
        self.rollouts.append(rollout)
        return rollout

    def compare(self, drift: float) -> dict[str, Any]:
        """The record of a rollout of a version whose scores are off by this much; outputs compared, no canary."""
        return self._roll_out(replace(self._usual, drift=drift), canary=False, compare=True)[0]

    def _roll_out(self, scoring: Scoring, **wishes: Any) -> tuple[dict[str, Any], int, int]:
        self._version += 1
        write_score_version(self._repository, self._version, scoring)
        asked = self.log.ask(time.monotonic_ns())
        identity = self._api.start_rollout({SCORE: str(self._version)}, **wishes)
        limit = 60 + sum(len(self._rule["steps"]) * [self._rule["max_seconds"]])
        record = self._api.wait(identity, limit, asked.see, poll_seconds=_POLL_SECONDS)
        return record, asked.asked_ns, time.monotonic_ns()

    def _passed(self, identity: str) -> str:
        """The figures of a canary's last step, as the events have them."""
        said = [str(event["what"]) for event in self._api.events() if event["about"] == identity]
        return next((what.partition(": ")[2] for what in reversed(said) if "passed its canary" in what), "")


def rule(given: argparse.Namespace) -> dict[str, Any]:
    """Steps, quantile, ratio, margin and significance are the defaults; a step is judged sooner and ends sooner."""
    return {
        "steps": [0.05, 0.25, 0.5],
        "min_samples": given.min_samples,
        "min_seconds": 5.0,
        "max_seconds": given.max_seconds,
        "latency_ratio": 1.1,
        "quantile": 0.95,
        "error_margin": 0.005,
        "significance": 0.01,
    }


def run(given: argparse.Namespace, directory: Path) -> int:
    repository = write_repository(directory / "models", 1)
    write_score(repository, given.instances)
    write_score_version(repository, 1, Scoring(given.median_ms, given.sigma))
    shape = Shape(given.workers, given.gateways, given.controllers, models={SCORE: {}})
    kinds = [kind for kind in (EQUAL, SLOWER, FAILING) for _ in range(given.each)]
    random.Random(given.seed).shuffle(kinds)
    with SupervisedFleet(directory / "fleet", repository, shape) as fleet:
        trials = Trials(fleet, repository, given)
        load = Load(directory / "history", fleet.gateways, streams(given.rate, given.agents), given.seed)
        began, busy = time.monotonic(), machine_cpu_seconds()
        with Antagonist(given.seed), load:
            time.sleep(_SETTLE_SECONDS)
            for number, kind in enumerate(kinds, 1):
                rollout = trials.canary(kind)
                say(f"{number} of {len(kinds)}: {kind} {rollout.state} after {rollout.seconds:.1f} s: {rollout.reason}")
            beyond, within = trials.compare(given.beyond), trials.compare(given.within)
            time.sleep(_SETTLE_SECONDS)
        seconds = time.monotonic() - began
        busy = (machine_cpu_seconds() - busy) / seconds
        history = load.history()
        commits = trials.log.commits(fleet.api.rollouts())
    violations = [str(violation) for violation in check(history, commits, PIPELINES)]
    seen = [canary_report.seen(rollout, history) for rollout in trials.rollouts]
    failed = canary_report.unasked_failures(history, trials.rollouts)
    unsettled = sum(one.unsettled for one in seen)
    compared = beyond["state"] == "aborted" and not beyond.get("epoch") and within["state"] == "done"

    print(f"rule: {json.dumps(rule(given))}")
    print(
        f"service: lognormal, median {given.median_ms:g} ms, sigma {given.sigma:g}; slower x{given.slower:g}, failing "
        f"{given.fails:.0%}; {given.rate:g} requests/s of {given.agents} agents; {busy:.2f} cores busy on the machine"
    )
    for number, (rollout, one) in enumerate(zip(trials.rollouts, seen, strict=True), 1):
        print(canary_report.line(number, rollout, one))
    print("\n".join(canary_report.summary(trials.rollouts)))
    print(f"outputs {given.beyond:g} off: {beyond['state']}: {beyond.get('reason', '')}")
    print(f"outputs {given.within:g} off: {within['state']}")
    on_purpose = sum(map(canary_report.is_on_purpose, history))
    print(f"{len(history):,} requests in {seconds:.0f} s; {on_purpose:,} were failed by the failing versions")
    print(f"other failed requests: {len(failed)}; agents with two versions in a step: {unsettled}")
    print(f"violations: {len(violations)}")
    for sentence in violations[:20]:
        print(f"  {sentence}")
    for reason, count in reasons(failed).most_common(10):
        print(f"  failed {count:6d}  {reason}")
    document = {
        "settings": {name: value for name, value in vars(given).items() if not isinstance(value, Path)},
        "rule": rule(given),
        "machine": describe(),
        "cores_busy": busy,
        "requests": len(history),
        "failed": len(failed),
        "failed_on_purpose": on_purpose,
        "violations": violations,
        "agents_with_two_versions": unsettled,
        "rollouts": canary_report.as_json(trials.rollouts, seen),
        "beyond_tolerance": beyond.get("reason", ""),
        "compared_rightly": compared,
    }
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / f"control-canaries{'-quick' if given.quick else ''}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten: {path}")
    wrong = [rollout for rollout in trials.rollouts if not rollout.is_right]
    return 1 if wrong or failed or violations or unsettled or not compared else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control.canaries", description=__doc__)
    parser.add_argument("--each", type=int, default=4, help="rollouts of each kind")
    parser.add_argument("--rate", type=float, default=250.0, help="requests a second, open loop")
    parser.add_argument("--agents", type=int, default=400)
    # Long compared with what ten processes on two cores add, so that 30 % of it is 30 % of the callers' latency.
    parser.add_argument("--median-ms", type=float, default=50.0, help="of the service time")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the logarithm of the service time")
    parser.add_argument("--slower", type=float, default=1.3, help="factor of the slower versions")
    parser.add_argument("--fails", type=float, default=0.03, help="share that the failing versions fail")
    parser.add_argument("--beyond", type=float, default=0.01, help="relative error of outputs, beyond the tolerance")
    parser.add_argument("--within", type=float, default=0.0001, help="and within it")
    parser.add_argument("--min-samples", type=int, default=100)
    parser.add_argument("--max-seconds", type=float, default=60.0, help="of a step")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--instances", type=int, default=8, help="of the model on each worker, for each version")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="directory for logs and histories; else they are removed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="one of each kind: does everything still work?")
    given = parser.parse_args()
    if given.quick:
        given.each = 1
    return given


def main() -> int:
    given = arguments()
    if busy := warning():
        say(busy)
    if given.keep is not None:
        return run(given, given.keep.resolve())
    with scratch("canaries") as directory:
        return run(given, directory)


if __name__ == "__main__":
    sys.exit(main())
