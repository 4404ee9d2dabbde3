"""``python -m bench.autoscaling``: a real fleet whose load rises sixfold and falls again.

One gateway, one controller, and workers whose models sleep, so that on few cores their number counts. Clients are
separate processes, open loop. Then the pool is left alone until it is empty, and requests without a deadline arrive
at once: each must be held and answered. Prints what callers saw of each load and what the autoscaler decided. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.autoscaling.report import HEADER, Phase, phase_report, worker_seconds
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.history import OK
from bench.control.load import Load, Stream
from bench.control.models import SOLO, STAGES, Service, write_repository
from bench.control.running_fleet import WORKER
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch

#: Seconds for a pool to lose its last worker beyond the time that it must be idle.
_ZERO_SECONDS = 60.0


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.autoscaling", description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second of the low load")
    parser.add_argument("--factor", type=float, default=6.0, help="of the high load over the low one")
    parser.add_argument("--service-ms", type=float, default=25.0, help="of a request, one at a time on each worker")
    parser.add_argument("--slo-ms", type=float, default=250.0)
    parser.add_argument("--seconds", default="30,60,60", help="of the low load, the high one, and the low one again")
    parser.add_argument("--warm", default="0,3", help="standby workers, one run for each")
    parser.add_argument("--max", type=int, default=8, help="workers that serve")
    parser.add_argument("--start-up", type=float, default=6.0, help="seconds that a worker's start is taken to last")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds without requests until the pool is empty")
    parser.add_argument("--burst", type=int, default=20, help="requests at once for the empty pool; 0: leave this out")
    given = parser.parse_args()
    given.phases = [float(each) for each in given.seconds.split(",")]
    if len(given.phases) != 3:
        parser.error("--seconds: expected three numbers, such as 30,60,60")
    return given


def shape(given: argparse.Namespace, warm: int) -> Shape:
    autoscale = {
        "slo_ms": given.slo_ms,
        "start_up_seconds": given.start_up,
        "zero_after_seconds": given.idle,
        # Minutes of production in seconds.
        "trend_seconds": 10,
        "down_seconds": 15,
    }
    pool = {"workers": 1, "max": given.max, "warm": warm, "autoscale": autoscale}
    models = {SOLO: {"slo": {"deadline_ms": given.slo_ms}}}
    # Ports for all that may run.
    return Shape(workers=given.max + warm, gateways=1, controllers=1, pool=pool, models=models)


def fleet_of(given: argparse.Namespace, warm: int, directory: Path) -> SupervisedFleet:
    fleet = SupervisedFleet(directory / "fleet", directory / "models", shape(given, warm))
    at_first = {f"cpu-{number}" for number in range(1, warm + 2)}
    fleet.parts = {name: part for name, part in fleet.parts.items() if part.role != WORKER or name in at_first}
    return fleet


def run(given: argparse.Namespace, warm: int, directory: Path) -> dict[str, Any]:
    write_repository(directory / "models", 1, Service(milliseconds=given.service_ms, instances=1))
    with fleet_of(given, warm, directory) as fleet:
        low, high, again = given.phases
        began = time.time()
        starts = [time.monotonic_ns()]
        whole = Stream("low", rate=given.rate, models=(SOLO,), seconds=low + high + again)
        with Load(directory / "low", fleet.gateways, [whole]) as steady:
            time.sleep(low)
            say(f"warm {warm}: the load rises to {given.rate * given.factor:g}/s")
            starts.append(time.monotonic_ns())
            more = Stream("more", rate=given.rate * (given.factor - 1), models=(SOLO,), seconds=high)
            with Load(directory / "high", fleet.gateways, [more], seed=7) as rise:
                time.sleep(high)
            starts.append(time.monotonic_ns())
            say(f"warm {warm}: and falls")
            steady.wait(again + 60)
        starts.append(time.monotonic_ns())
        ended = time.time()
        answers = [*steady.history(), *rise.history()]
        names = ("1×", f"{given.factor:g}×", "1× again")
        phases = [Phase(name, at, end) for name, at, end in zip(names, starts, starts[1:], strict=False)]
        reports = [phase_report(phase, answers, given.slo_ms / 1e3) for phase in phases]
        burst = _burst(fleet, given, directory) if given.burst else {}
        events = fleet.api.events()
    sizes = [(began, 1), *_sizes(events, began, ended)]
    return {
        "warm": warm,
        "phases": [asdict(each) for each in reports],
        "rows": [each.row() for each in reports],
        "worker_seconds": worker_seconds(sizes, began, ended) + warm * (ended - began),
        "most_workers": max(workers for _, workers in sizes),
        "decisions": [
            f"{each['at'] - began:6.1f} s  {each['what']}  {each['detail']}"
            for each in events
            if each["what"] in ("pool sized", "standby worker serves")
        ],
        "burst": burst,
    }


def _burst(fleet: SupervisedFleet, given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Requests for a pool without workers: all at once, each by a caller that waits for its answer."""
    waited = time.monotonic()
    while fleet.api.status()["workers"]:
        if time.monotonic() - waited > given.idle + _ZERO_SECONDS:
            raise TimeoutError("the pool still has workers")
        time.sleep(0.1)
    say(f"no worker after {time.monotonic() - waited:.1f} s; {given.burst} requests at once")
    at = time.time()
    stream = Stream("burst", in_flight=given.burst, models=(STAGES[0],), seconds=1.0)
    with Load(directory / "burst", fleet.gateways, [stream], seed=11) as load:
        load.wait(90)
    answers = load.history()
    first = min(answers, key=lambda each: each.started_ns)
    woken = [each["at"] - at for each in fleet.api.events() if each["what"] == "pool sized" and each["at"] >= at]
    return {
        "requests": len(answers),
        "failed": sum(each.outcome != OK for each in answers),
        "errors": sorted({each.error[:100] for each in answers if each.outcome != OK}),
        "first_ms": first.latency_ns / 1e6,
        "longest_ms": max(each.latency_ns for each in answers) / 1e6,
        # With the start of the clients' process.
        "woken_after_seconds": min(woken, default=None),
    }


def _sizes(events: Sequence[Mapping[str, Any]], began: float, ended: float) -> list[tuple[float, int]]:
    return [
        (each["at"], int(each["detail"].split(":")[0].split()[3]))
        for each in events
        if each["what"] == "pool sized" and began <= each["at"] <= ended and each["detail"].startswith("from ")
    ]


def main() -> int:
    given = arguments()
    results = []
    for warm in (int(each) for each in given.warm.split(",")):
        with scratch("autoscaling") as directory:
            results.append(run(given, warm, directory))
        found = results[-1]
        print(
            f"\nwarm {warm}: {found['worker_seconds']:.0f} worker-seconds, at most {found['most_workers']} that serve"
        )
        print("\n".join((HEADER, *found["rows"])))
        print("\n".join(found["decisions"]))
        if found["burst"]:
            print(f"from no worker: {json.dumps(found['burst'])}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    options = {name: value for name, value in vars(given).items() if name != "phases"}
    document = {"machine": describe(), "options": options, "runs": results}
    (RESULTS / "autoscaling.json").write_text(json.dumps(document, indent=2))
    lost = sum(found["burst"].get("failed", 0) for found in results)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
