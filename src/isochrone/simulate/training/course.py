"""Training of the learned policy: rounds of episodes on random fleets, with a fit after each round.

A contextual bandit, trained by the direct method. In every episode, a share of the requests is placed at random within
the safe set, and a ridge regression estimates how much each feature of a candidate adds to the cost of a request. Later
rounds place the other requests by the weights so far, so that the policy learns about the states that its own choices
lead to. Finally the margin is chosen on fresh episodes: the advantage that another candidate must have before Prequal's
choice is overruled.

Deterministic by seed: ``minutes`` sets the number of episodes, not their duration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from random import Random
from typing import Any, NamedTuple

from isochrone.errors import ConfigError
from isochrone.gateway.policies.base import Policy
from isochrone.gateway.policies.learned.model import Weights
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.simulate.scenario.records import Scenario
from isochrone.simulate.training.episodes import UNTRAINED, Lessons, Recorder, Trainee, outcome, study
from isochrone.simulate.training.scenarios import REQUESTS, TRAINING, Kind

#: Episodes that take about a minute of one core.
EPISODES_PER_MINUTE = 80
#: Share of an episode's requests that is placed at random: larger in the first round, which has no weights yet.
_FIRST_LOTS, _LOTS = 0.5, 0.25
_ROUNDS = 4
_RIDGE = 0.02
#: Features may exceed the range of training by this much (a factor of 1.5) before the policy is out of its range.
_ROOM = log(1.5)
_MARGINS = (0.03, 0.06, 0.1, 0.15, 0.25)
#: Share of the episodes that is used to choose the margin.
_FOR_MARGIN = 0.4

#: Called before each step with its description, the steps done so far, and their total.
Progress = Callable[[str, int, int], None]


class Course(NamedTuple):
    """The result of a training."""

    weights: Weights
    #: By margin: p99 relative to Prequal's on the episodes that the margin is chosen on.
    margins: dict[float, float]


def train(
    seed: int,
    minutes: float,
    progress: Progress | None = None,
    requests: int = REQUESTS,
    training: Sequence[Kind] = TRAINING,
) -> Course:
    """Train the policy. ``requests``: of one episode; ``training``: the kinds of episode, in turn."""
    kinds = len(training)
    whole = max(2 * kinds, round(minutes * EPISODES_PER_MINUTE))
    repeats = max(1, round(whole * _FOR_MARGIN / kinds / (1 + len(_MARGINS))))
    for_margin = repeats * kinds * (1 + len(_MARGINS))
    per_round = max(kinds, -(-(whole - for_margin) // _ROUNDS // kinds) * kinds)
    steps = per_round * _ROUNDS + for_margin
    random = Random(f"train {seed}")
    lessons = Lessons()
    weights, done = UNTRAINED, 0
    for turn in range(_ROUNDS):
        for number in range(per_round):
            scenario = training[number % kinds](random, requests)
            if progress is not None:
                progress(f"round {turn + 1} of {_ROUNDS}: {scenario.name}", done, steps)
            study(scenario, weights, _LOTS if turn else _FIRST_LOTS, random.getrandbits(32), lessons)
            done += 1
        if lessons.samples:
            weights = Weights(lessons.fit(_RIDGE), lessons.ranges(_ROOM), 0.0)
    if not lessons.samples:
        raise ConfigError("training", "requests", "episodes long enough to learn from", str(requests))
    episodes = [(kind(random, requests), random.getrandbits(32)) for kind in [*training] * repeats]
    margins = _try_margins(weights, episodes, lambda name, at: _report(progress, name, done + at, steps))
    margin = min(margins, key=margins.__getitem__)
    origin: dict[str, str | int | float] = {
        "command": f"isochrone simulate train --seed {seed} --minutes {minutes:g}",
        "episodes": steps,
        "requests_placed_by_lot": lessons.samples,
    }
    return Course(Weights(weights.weights, weights.ranges, margin, origin), margins)


def _report(progress: Progress | None, name: str, done: int, steps: int) -> None:
    if progress is not None:
        progress(name, done, steps)


def _try_margins(
    weights: Weights, episodes: Sequence[tuple[Scenario, int]], report: Callable[[str, int], None]
) -> dict[float, float]:
    """The p99 of each margin relative to Prequal's, as a geometric mean over fresh episodes of every kind."""
    sums, done = dict.fromkeys(_MARGINS, 0.0), 0
    for scenario, seed in episodes:
        report(f"margin: {scenario.name}", done)
        usual = outcome(scenario, Prequal, seed)
        for margin in _MARGINS:
            sums[margin] += log(_ratio(outcome(scenario, _with_margin(weights, margin), seed), usual))
        done += 1 + len(_MARGINS)
    return {margin: round(exp(total / len(episodes)), 4) for margin, total in sums.items()}


def _with_margin(weights: Weights, margin: float) -> Callable[[Random], Policy]:
    given = Weights(weights.weights, weights.ranges, margin)
    return lambda random: Trainee(random, given, 0.0, Recorder(given))


def _ratio(figures: dict[str, Any], usual: dict[str, Any]) -> float:
    return float(figures["p99_ms"] / usual["p99_ms"])
