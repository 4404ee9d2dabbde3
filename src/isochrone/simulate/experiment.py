"""All runs of a scenario, every policy with every seed, and their results as plain figures.

The figures do not depend on the machine: the same scenario and seed give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from statistics import median
from typing import Any

from isochrone.gateway.policies import make
from isochrone.gateway.policies.base import Policy
from isochrone.simulate.fleet import Fleet
from isochrone.simulate.load.workloads import Steps
from isochrone.simulate.results.tally import Tally
from isochrone.simulate.scenario.records import PolicyChoice, Scenario, capacity_per_second

#: Called during a run with the policy, the seed, the simulated seconds so far, and their total.
Progress = Callable[[str, int, float, float], None]

_PER_RUN = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "goodput_per_s", "missed_share", "rejected_share", "failed_share")


def run(scenario: Scenario, choices: Sequence[PolicyChoice], progress: Progress | None = None) -> dict[str, Any]:
    """Simulate every policy and return the figures, ready for JSON."""
    return {
        "scenario": scenario.name,
        "about": scenario.about.strip(),
        "seed": scenario.seed,
        "seeds": scenario.seeds,
        "workers": scenario.worker_count,
        "gateways": scenario.gateways.count,
        "capacity_per_s": round(capacity_per_second(scenario), 3),
        "policies": [_run_policy(scenario, choice, progress) for choice in choices],
    }


def _run_policy(scenario: Scenario, choice: PolicyChoice, progress: Progress | None) -> dict[str, Any]:
    def factory(random: Random) -> Policy:
        return make(choice.name, random, **choice.options)

    phases = scenario.workload.phases
    merged = [[Tally() for _ in scenario.requests] for _ in phases]
    runs: list[dict[str, Any]] = []
    requests = events = probes = 0
    seconds = 0.0
    for seed in range(scenario.seed, scenario.seed + scenario.seeds):
        fleet = Fleet(scenario, factory, seed)
        fleet.run(_for_run(progress, choice.title, seed))
        total = Tally()
        for ours, theirs in zip(merged, fleet.tallies, strict=True):
            for tally, other in zip(ours, theirs, strict=True):
                tally.merge(other)
                total.merge(other)
        figures = total.figures(fleet.counted_seconds)
        runs.append({"seed": seed, **{name: figures[name] for name in _PER_RUN}})
        seconds += fleet.counted_seconds
        requests += total.offered + fleet.warmup.offered
        events += fleet.engine.events
        probes += sum(gateway.probes for gateway in fleet.gateways)
    result: dict[str, Any] = {
        "policy": choice.title,
        "requests": requests,
        "events": events,
        "probes": probes,
        "total": _sum(tally for row in merged for tally in row).figures(seconds),
    }
    if len(phases) > 1 and isinstance(scenario.workload, Steps):
        each = scenario.workload.step_seconds * scenario.seeds
        result["phases"] = [
            {"phase": name, **_sum(row).figures(each)} for name, row in zip(phases, merged, strict=True)
        ]
    if len(scenario.requests) > 1:
        result["kinds"] = [
            {"kind": given.name, **_sum(row[index] for row in merged).figures(seconds)}
            for index, given in enumerate(scenario.requests)
        ]
    if scenario.seeds > 1:
        result["runs"] = runs
        result["median_of_runs"] = {name: round(median(each[name] for each in runs), 6) for name in _PER_RUN}
    return result


def _for_run(progress: Progress | None, policy: str, seed: int) -> Callable[[float, float], None] | None:
    if progress is None:
        return None
    return lambda passed, whole: progress(policy, seed, passed, whole)


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total
