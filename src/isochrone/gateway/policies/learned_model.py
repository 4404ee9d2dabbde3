"""The learned policy's model: one weight per figure, the range each was trained in, and how sure is sure.

A score is a sum of weights times figures: the lower, the sooner the answer is expected, in logarithms of time. Weights
come from a JSON file written by ``isochrone simulate train``; the one beside this module is the default. Online
refinement moves them by small steps and never further than ``drift`` from what the file says.
"""

from __future__ import annotations

from math import exp, log
from operator import mul
from pathlib import Path
from typing import NamedTuple

import msgspec

from isochrone.errors import ConfigError
from isochrone.gateway.policies.learned_features import KEPT, NAMES, View
from isochrone.gateway.targets import Target

#: Trained by ``isochrone simulate train``; docs/learned.md has the command and the figures.
SHIPPED = Path(__file__).with_name("learned_weights.json")
#: A missed deadline costs as much as taking e times as long.
MISSED = 1.0
#: A residual beyond this says more of the one request than of the weights.
_CLIPPED = 2.0
#: Weights near 0 may drift as far as one of this size.
_SMALLEST_SCALE = 0.1
_GAIN = 1 / 64


class Lot(NamedTuple):
    """A request that was placed at random among the safe ones."""

    #: Figures of its target less the mean over all it was drawn from, and that mean.
    centred: list[float]
    means: list[float]
    deadline: int


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a weights file holds."""

    #: By figure, see ``learned_features``.
    weights: dict[str, float]
    #: Lowest and highest value met in training; times relative to the fleet's typical latency.
    ranges: dict[str, tuple[float, float]]
    #: The heuristic's choice stands unless another's score is lower by this.
    margin: float
    #: Where it comes from: command, seed, episodes.
    trained: dict[str, str | int | float] = {}


def read(path: Path) -> Weights:
    """The weights in a file."""
    where = str(path)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Weights)
    except OSError as error:
        raise ConfigError(where, "file", "a readable JSON file", error.strerror or str(error)) from None
    except msgspec.DecodeError as error:
        raise ConfigError(where, "file", "weights as `isochrone simulate train` writes them", str(error)) from None
    for key, given in (("weights", found.weights), ("ranges", found.ranges)):
        if set(given) != set(NAMES):
            missing, unknown = sorted(set(NAMES) - set(given)), sorted(set(given) - set(NAMES))
            told = f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
            raise ConfigError(where, key, f"one value for each of {', '.join(NAMES)}", told)
    for name, weight in found.weights.items():
        if not weight >= 0:
            raise ConfigError(where, f"weights.{name}", "a number from 0 on", repr(weight))
    if not found.margin >= 0:
        raise ConfigError(where, "margin", "a number from 0 on", repr(found.margin))
    return found


def check_writable(path: Path) -> None:
    """Said before minutes of training, not after."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(str(path), "file", "a file in a folder that exists", "a folder" if path.is_dir() else "none")


def write(weights: Weights, path: Path) -> None:
    """For ``read``; the same weights give the same bytes."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(weights), indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(str(path), "file", "a file that can be written", error.strerror or str(error)) from None


class Model:
    """Weights at work. ``step``: of the refinement; ``drift``: how far it may go, as a share of a weight."""

    def __init__(self, given: Weights, step: float = 0.0, drift: float = 0.0) -> None:
        self.margin = given.margin
        self.weights = [given.weights[name] for name in NAMES]
        scales = [max(abs(weight), _SMALLEST_SCALE) * drift for weight in self.weights]
        # Never below 0: more load must not make anybody look better.
        self._lowest = [max(0.0, weight - scale) for weight, scale in zip(self.weights, scales, strict=True)]
        self._highest = [weight + scale for weight, scale in zip(self.weights, scales, strict=True)]
        self._step = step
        self._low = [given.ranges[name][0] for name in NAMES]
        self._high = [given.ranges[name][1] for name in NAMES]
        self._split()
        #: The fleet's typical latency, as a logarithm: mean of what was seen; 0: nothing yet.
        self.typical = 0.0
        self.refinements = 0
        self._baseline = 0.0

    def _split(self) -> None:
        self._kept = self.weights[: len(KEPT)]
        self.outlook, self.outlook_when_tight, self.speed_when_large = self.weights[len(KEPT) :]

    def look(self, view: View, target: Target, now: int) -> None:
        """Describes a target anew, and scores what does not change with time."""
        view.describe(target, now)
        if not view.known:
            view.inside = False
            return
        figures = view.figures
        view.base = sum(map(mul, self._kept, figures))
        low, high, typical = self._low, self._high, self.typical
        # The figures that can be out of bounds, in the order of KEPT; age and memory cannot. Written out: a loop over
        # all of them costs more than the score.
        expected, load, _, latency, peak, speed, errors, _, _ = figures
        view.inside = (
            low[0] <= expected - typical <= high[0]
            and load <= high[1]
            and low[3] <= latency - typical <= high[3]
            and low[4] <= peak - typical <= high[4]
            and low[5] <= speed - typical <= high[5]
            and errors <= high[6]
        )

    def saw(self, latency_ns: int) -> None:
        """A request of anybody's took this long."""
        latency, typical = log(latency_ns), self.typical
        self.typical = typical + (latency - typical) * _GAIN if typical else latency

    @property
    def typical_ns(self) -> float:
        return exp(self.typical)

    def refine(self, lot: Lot, latency_ns: int, now: int) -> None:
        """A request that was placed by lot took this long.

        Being drawn at random, its centred figures have mean 0 whatever the state of the fleet, so any baseline will do;
        a running mean is the cheapest.
        """
        if not self._step:
            return
        paid = cost(lot, latency_ns, now)
        if not self.refinements:
            self._baseline = paid
        self.refinements += 1
        residual = paid - self._baseline - sum(map(mul, self.weights, lot.centred))
        self._baseline += (paid - self._baseline) / 16
        residual = max(-_CLIPPED, min(_CLIPPED, residual))
        # Normalised, so that a request with extreme figures moves the weights no further than another.
        pull = self._step * residual / (1 + sum(map(mul, lot.centred, lot.centred)))
        bounds = zip(self._lowest, self._highest, strict=True)
        self.weights = [
            max(lowest, min(highest, weight + pull * figure))
            for weight, figure, (lowest, highest) in zip(self.weights, lot.centred, bounds, strict=True)
        ]
        self._split()


def cost(lot: Lot, latency_ns: int, now: int) -> float:
    """What a request cost: its latency as a logarithm, and a penalty for a missed deadline."""
    return log(max(1, latency_ns)) + (MISSED if now > lot.deadline else 0.0)
