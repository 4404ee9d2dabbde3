"""One episode of training: a simulated run that records the cost of the requests it places at random.

The policy is the real one without its guard rails and control slice: in training it may be wrong. It learns only from
requests that were placed at random; its own choices would confirm themselves.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.gateway.policies.base import Policy
from isochrone.gateway.policies.learned.features import NAMES, TIMES
from isochrone.gateway.policies.learned.model import Lot, Model, Weights, cost
from isochrone.gateway.policies.learned.policy import Learned
from isochrone.simulate.fleet import Fleet, PolicyFactory
from isochrone.simulate.results.tally import Tally
from isochrone.simulate.scenario.records import Scenario

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats

_TIMES = np.array([name in TIMES for name in NAMES])
_SHARES = np.array([name in ("errors", "age", "memory") for name in NAMES])
_ROOM_OF_SHARES = 0.05
_SWEEPS = 2000
#: Ridge on the context: without it, features that never change would leave the regression without a solution.
_RIDGE = 0.1
#: Episodes with fewer requests placed at random are ignored.
_FEWEST = 200
#: Weights before the first fit: no feature is out of range.
UNTRAINED = Weights(dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, (-1e9, 1e9)), 1e9)


class Recorder(Model):
    """Records observations instead of refining the weights."""

    def __init__(self, given: Weights) -> None:
        super().__init__(given)
        self.centred: list[list[float]] = []
        self.means: list[list[float]] = []
        self.costs: list[float] = []
        self.typicals: list[float] = []

    def refine(self, lot: Lot, latency_ns: int, now: int) -> None:
        self.centred.append(lot.centred)
        self.means.append(lot.means)
        self.costs.append(cost(lot, latency_ns, now))
        self.typicals.append(self.typical)


class Trainee(Learned):
    """Places the share ``lots`` of the requests at random, and is never switched off."""

    def __init__(self, random: Random, weights: Weights, lots: float, recorder: Recorder) -> None:
        super().__init__(random, weights=weights, floor=0.0, ceiling=1e9)
        self.model = recorder
        self._control, self._explore = 0.0, lots

    def _count(self, which: int, latency_ns: int, failed: bool) -> None:
        """Not monitored."""


class Lessons:
    """The sums over episodes that a fit needs, and the observed ranges of the features."""

    def __init__(self) -> None:
        self.samples = 0
        self._moments: Floats = np.zeros((len(NAMES), len(NAMES)))
        self._products: Floats = np.zeros(len(NAMES))
        self._weight = 0.0
        self._lows: list[Floats] = []
        self._highs: list[Floats] = []

    def add(self, recorder: Recorder) -> None:
        """Add the observations of one gateway in one episode."""
        if len(recorder.costs) < _FEWEST:
            return
        centred, means = np.array(recorder.centred), np.array(recorder.means)
        # Subtract the part that the state of the fleet explains: it is the same for every candidate.
        context = np.hstack([means - means.mean(axis=0), np.ones((len(means), 1))])
        held = np.vstack([context, _RIDGE * np.eye(context.shape[1])])
        costs = np.array(recorder.costs)
        explained = np.linalg.lstsq(held, np.append(costs, np.zeros(context.shape[1])), rcond=None)[0]
        left = costs - context @ explained
        # Weighted by the inverse of its noise, so that sizes of infinite variance do not dominate.
        weight = 1 / max(float(left.var()), 1e-6)
        self._moments += weight * centred.T @ centred
        self._products += weight * centred.T @ left
        self._weight += weight * len(costs)
        self.samples += len(costs)
        met = centred + means - np.outer(recorder.typicals, _TIMES)
        self._lows.append(np.quantile(met, 0.001, axis=0))
        self._highs.append(np.quantile(met, 0.999, axis=0))

    def fit(self, ridge: float) -> dict[str, float]:
        """The non-negative weights that explain the costs best; ridge: ``ridge`` times each feature's variance.

        No weight is negative: more load, a longer outlook or an older report must never make a candidate look better,
        whatever the noise suggests.
        """
        spread = np.diag(self._moments) / self._weight
        # A feature that never differed between candidates has no effect that could be estimated.
        taught = spread >= 1e-9
        held = self._moments / self._weight + np.diag(ridge * spread + ~taught)
        products = np.where(taught, self._products / self._weight, 0.0)
        solved = np.zeros(len(NAMES))
        # Coordinate descent: the sum of squares is convex, so it converges to the optimum.
        for _ in range(_SWEEPS):
            for place in range(len(NAMES)):
                slope = products[place] - held[place] @ solved + held[place, place] * solved[place]
                solved[place] = max(0.0, slope / held[place, place])
        return {name: round(float(value), 5) for name, value in zip(NAMES, solved, strict=True)}

    def ranges(self, room: float) -> dict[str, tuple[float, float]]:
        """The observed range of each feature over all episodes, extended by ``room`` if the feature is a logarithm."""
        rooms = np.where(_SHARES, _ROOM_OF_SHARES, room)
        lows, highs = np.min(self._lows, axis=0) - rooms, np.max(self._highs, axis=0) + rooms
        return {
            name: (round(float(low), 3), round(float(high), 3))
            for name, low, high in zip(NAMES, lows, highs, strict=True)
        }


def study(scenario: Scenario, weights: Weights, lots: float, seed: int, lessons: Lessons) -> None:
    """Run one episode and add its observations."""
    trainees: list[tuple[Trainee, Recorder]] = []

    def factory(random: Random) -> Policy:
        recorder = Recorder(weights)
        trainee = Trainee(random, weights, lots, recorder)
        trainees.append((trainee, recorder))
        return trainee

    Fleet(scenario, factory, seed).run()
    for trainee, recorder in trainees:
        trainee.catch_up()
        lessons.add(recorder)


def outcome(scenario: Scenario, factory: PolicyFactory, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    fleet = Fleet(scenario, factory, seed)
    fleet.run()
    total = Tally()
    for row in fleet.tallies:
        for tally in row:
            total.merge(tally)
    return total.figures(fleet.counted_seconds)
