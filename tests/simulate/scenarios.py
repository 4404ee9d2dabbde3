"""Small scenarios and runs for the tests of this folder; each test states only what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isochrone.gateway.policies import make
from isochrone.simulate.fleet import Fleet
from isochrone.simulate.results.tally import Tally
from isochrone.simulate.scenario.records import Scenario

SHIPPED = Path(__file__).parents[2] / "examples" / "scenarios"


def scenario_of(**parts: Any) -> Scenario:
    """One fifo worker of 1 ms, Poisson at half its capacity, no network, unless ``parts`` says otherwise."""
    given: dict[str, Any] = {
        "seconds": 10,
        "workload": {"kind": "poisson", "rate": 500},
        "workers": [{"model": "fifo", "batch_ms": {1: 1.0}}],
        "network": {"one_way_ms": 0},
        "gateways": {"retries": False, "outliers": False},
        **parts,
    }
    return Scenario.model_validate(given)


def run(scenario: Scenario, policy: str = "round_robin", seed: int = 1) -> Fleet:
    fleet = Fleet(scenario, lambda random: make(policy, random), seed)
    fleet.run()
    return fleet


def total_of(fleet: Fleet) -> Tally:
    total = Tally()
    for row in fleet.tallies:
        for tally in row:
            total.merge(tally)
    return total


def outcome(policy: str = "round_robin", seed: int = 1, **parts: Any) -> Tally:
    """The outcomes of a run."""
    return total_of(run(scenario_of(**parts), policy, seed))
