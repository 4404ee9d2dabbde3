"""Antagonists leave a worker never less than its allocation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from answering import no_delay
from scenarios import outcome

from isochrone.clock import MILLISECOND, SECOND
from isochrone.simulate.draws import stream
from isochrone.simulate.engine import START_NS, Engine
from isochrone.simulate.processes.antagonists import Antagonists
from isochrone.simulate.processes.sharing_worker import SharingWorker

Cores = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def cores_over_time(rules: Antagonists, workers: int, seconds: int, seed: int = 1) -> Cores:
    """Cores of each worker, looked at ten times a second."""
    engine = Engine()
    fleet = [SharingWorker(number, engine, no_delay, MILLISECOND, 2.0) for number in range(workers)]
    rules.attach(engine, fleet, stream(seed, "antagonists"))
    seen = []
    for tenth in range(seconds * 10):
        engine.advance(START_NS + tenth * SECOND // 10)
        seen.append([worker.cores for worker in fleet])
    found: Cores = np.array(seen)
    return found


def test_nobody_gets_less_than_its_allocation_or_more_than_the_machine() -> None:
    cores = cores_over_time(Antagonists(machine_cores=20, level=(0.5, 1.1), swing=0.3, change_seconds=0.5), 20, 30)
    assert cores.min() == 2.0
    assert cores.max() <= 20.0


def test_machines_keep_their_levels_apart_and_each_moves_around_its_own() -> None:
    cores = cores_over_time(Antagonists(machine_cores=20, level=(0.2, 0.8), swing=0.02, change_seconds=0.5), 10, 60)
    means = np.sort(cores.mean(axis=0))
    # Levels are spread evenly: 4 to 16 cores are left, in equal steps.
    assert means == pytest.approx(np.linspace(4, 16, 10), abs=0.3)
    assert 0.2 < cores.std(axis=0).mean() < 0.6


def test_without_swing_nothing_moves() -> None:
    cores = cores_over_time(Antagonists(machine_cores=10, level=(0.5, 0.5), swing=0.0), 3, 5)
    assert set(cores.ravel()) == {5.0}


def test_a_seed_gives_the_same_neighbours() -> None:
    rules = Antagonists(machine_cores=20)
    assert np.array_equal(cores_over_time(rules, 5, 10), cores_over_time(rules, 5, 10))
    assert not np.array_equal(cores_over_time(rules, 5, 10), cores_over_time(rules, 5, 10, seed=2))


def test_load_beyond_the_allocation_is_borne_only_by_machines_that_have_more() -> None:
    parts: dict[str, Any] = {
        "seconds": 20,
        "workload": {"kind": "poisson", "rate": 240},
        "requests": [{"deadline_ms": 2000}],
        "workers": [{"model": "sharing", "cpu_ms": 10, "cores": 1, "count": 2}],
    }
    # 1.2 times the allocation, spread evenly. With full machines there is no more than the allocation.
    tight = outcome(**parts, antagonists={"machine_cores": 10, "level": [1.0, 1.0], "swing": 0})
    roomy = outcome(**parts, antagonists={"machine_cores": 10, "level": [0.5, 0.5], "swing": 0})
    assert tight.late > 0.1 * tight.offered
    assert roomy.late == 0
