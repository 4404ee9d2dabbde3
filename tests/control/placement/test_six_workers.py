"""20 models on 6 nearly full workers, as in the proof with real processes: what the loss of each worker moves."""

from __future__ import annotations

from functools import partial

import pytest

from isochrone.control.placement.needs import ModelNeeds
from isochrone.control.placement.plan import ADD
from isochrone.control.placement.planning.planner import plan_placement
from isochrone.control.placement.workers import WorkerOffer
from isochrone.simulate.placement.baselines import Choose, best_fit, first_fit, keep, repack
from isochrone.simulate.placement.comparison import Planner

NEEDS = [
    *(ModelNeeds(f"m{number:02}", memory=60 + 20 * (number % 6)) for number in range(16)),
    *(ModelNeeds(name, memory=20) for name in ("solo", "stage_a", "stage_b")),
    ModelNeeds("chain", memory=20, together=("stage_a", "stage_b")),
]
WORKERS = [WorkerOffer(f"cpu-{number}", memory=440) for number in range(1, 7)]


def losses(planner: Planner) -> tuple[int, int, int]:
    """Over the loss of each worker: its models, the loads, and the models that found no place."""
    before = planner(NEEDS, WORKERS, {})
    models = loads = unplaced = 0
    for lost in WORKERS:
        plan = planner(NEEDS, [worker for worker in WORKERS if worker is not lost], before.replicas)
        models += sum(lost.name in names for names in before.replicas.values())
        loads += sum(move.action == ADD for move in plan.moves)
        unplaced += len(plan.unplaced)
    return models, loads, unplaced


def test_a_loss_moves_the_lost_models_and_no_others() -> None:
    assert losses(plan_placement) == (20, 20, 0)


@pytest.mark.parametrize(("fit", "loads"), [(first_fit, 83), (best_fit, 68)])
def test_first_fit_and_best_fit_move_no_less(fit: Choose, loads: int) -> None:
    assert losses(partial(keep, fit)) == (20, 20, 0)
    assert losses(partial(repack, fit)) == (20, loads, 0)
