"""A fleet for simulations of model placement: models of mixed sizes on workers of three kinds, drawn by a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from isochrone.control.placement.needs import BatchCurve, ModelNeeds
from isochrone.control.placement.workers import WorkerOffer

GIB = 2**30

#: Share of the workers, memory in GiB and compute of each kind.
KINDS = {"cpu": (0.48, 8, 1.0), "gpu": (0.36, 32, 1.0), "large": (0.16, 80, 2.0)}
#: Run times relative to the kind gpu.
SLOWNESS = {"cpu": 4.0, "gpu": 1.0, "large": 0.6}
#: Rows, and the run time relative to that of one row.
_BATCHES = ((1, 1.0), (4, 1.6), (16, 4.0))
#: Of 200 models: ensembles of three, models with a worker of their own, and models on two machines.
_ENSEMBLES, _ISOLATED, _APART = 6, 4, 10


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    needs: tuple[ModelNeeds, ...]
    workers: tuple[WorkerOffer, ...]


def draw_fleet(random: Random, models: int, workers: int) -> SimulatedFleet:
    needs = [draw_model(random, f"model-{number:04}") for number in range(models)]
    groups = models // 200 or 1
    for number in range(min(_ENSEMBLES * groups, models // 9)):
        first = number * 3
        # The stages have no rules of their own, so that they can follow their ensemble; all run where it runs.
        devices = ("gpu", "large") if any(each.devices for each in needs[first : first + 3]) else ()
        for at in range(first, first + 3):
            needs[at] = replace(needs[at], devices=devices, memory=min(needs[at].memory, 8 * GIB))
        needs[first] = replace(needs[first], together=(needs[first + 1].name, needs[first + 2].name))
    rest = range(min(_ENSEMBLES * groups, models // 9) * 3, models)
    for at in random.sample(list(rest), min(_ISOLATED * groups, len(rest))):
        needs[at] = replace(needs[at], isolated=True)
    for at in random.sample(list(rest), min(_APART * groups, len(rest))):
        if not needs[at].isolated:
            needs[at] = replace(needs[at], apart=True, min_replicas=2)
    return SimulatedFleet(tuple(needs), tuple(draw_workers(random, workers)))


def draw_model(random: Random, name: str) -> ModelNeeds:
    """Sizes from 0.1 to 24 GiB, equally often in every octave; large models need a GPU."""
    memory = int(0.1 * GIB * 240 ** random.random())
    if memory > 10 * GIB:
        devices: tuple[str, ...] = ("gpu", "large")
    elif memory > 3 * GIB:
        devices = random.choice((("gpu", "large"), ()))
    else:
        devices = random.choice((("cpu",), (), ()))
    seconds = 0.002 * 10 ** random.random()
    curves = {
        kind: BatchCurve(tuple((rows, seconds * slowness * times) for rows, times in _BATCHES))
        for kind, slowness in SLOWNESS.items()
    }
    # Most models have little load and a few have much.
    demand = min(0.25, 0.02 * random.paretovariate(1.1))
    return ModelNeeds(name, memory, rate=demand / seconds, curves=curves, budget=0.25, devices=devices)


def draw_workers(random: Random, count: int) -> list[WorkerOffer]:
    """Two on each machine."""
    kinds = [kind for kind, (share, _, _) in KINDS.items() for _ in range(round(share * count))]
    kinds = (kinds + ["gpu"] * count)[:count]
    return [
        WorkerOffer(
            f"{kind}-{number:03}",
            memory=KINDS[kind][1] * GIB,
            compute=KINDS[kind][2],
            device=kind,
            machine=f"machine-{number // 2:03}",
            round_trip=random.uniform(0.0003, 0.0009),
        )
        for number, kind in enumerate(kinds)
    ]
