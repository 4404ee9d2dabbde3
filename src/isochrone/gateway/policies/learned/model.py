"""The learned policy's model: one weight per figure, the range each was trained in, and how sure is sure.

A score is a sum of weights times figures: the lower, the sooner the answer is expected, in logarithms of time. Weights
come from a JSON file written by ``isochrone simulate train``; the one beside this module is the default. Online
refinement moves them by small steps and never further than ``drift`` from what the file says.
"""

from __future__ import annotations

from math import exp, log
from operator import mul, sub
from pathlib import Path
from typing import NamedTuple

import msgspec

from isochrone.errors import ConfigError
from isochrone.gateway.policies.learned.features import NAMES, Seen, View, figures, lack_of_memory
from isochrone.gateway.replicas import NEWS_NS, Replica

#: Trained by ``isochrone simulate train``; docs/learned.md has the command and the figures.
SHIPPED = Path(__file__).with_name("weights.json")
#: A missed deadline costs as much as taking e times as long.
MISSED = 1.0
#: A residual beyond this says more of the one request than of the weights.
_CLIPPED = 2.0
#: A view is looked at again this often: news grows old without an event.
LOOK_NS = NEWS_NS // 2
#: The score of a replica that has not answered yet, or is unlike all that training met.
UNKNOWN = float("inf")
#: Who fails more often than this is not well, whatever training met: never moved to.
_MOST_ERRORS = 0.1
_GAIN = 1 / 128
#: Logarithms of one more than so many requests.
_LOGS = [log(1 + count) for count in range(4096)]


class Lot(NamedTuple):
    """A request that was placed at random among the safe ones."""

    #: Figures of its replica less the mean over all it was drawn from, and that mean.
    centred: list[float]
    means: list[float]
    deadline: int


class Draw:
    """What a request placed at random was drawn from: enough for its ``Lot``, which is made when it is over. The
    logarithms and the means would cost the choice more than all the rest of it."""

    __slots__ = ("candidates", "deadline", "place", "size", "tightness")

    def __init__(self, candidates: list[Seen], place: int, deadline: int, tightness: float, size: float) -> None:
        self.candidates = candidates
        self.place = place
        self.deadline = deadline
        self.tightness = tightness
        self.size = size

    def lot(self) -> Lot:
        rows = [figures(what, self.tightness, self.size) for what in self.candidates]
        means = [total / len(rows) for total in map(sum, zip(*rows, strict=True))]
        return Lot(list(map(sub, rows[self.place], means)), means, self.deadline)


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a weights file holds."""

    #: By figure, see ``features``.
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
        # What training found useless stays so, and none goes below 0: more load must not make anybody look better.
        self._lowest = [weight * (1 - drift) for weight in self.weights]
        self._highest = [weight * (1 + drift) for weight in self.weights]
        self._step = step
        ranges = given.ranges
        self._expected_range, self._peak_range = ranges["expected"], ranges["peak"]
        most_load = int(exp(min(ranges["load"][1], log(len(_LOGS))))) - 1
        #: Together, as are the factors below: one read in place of many.
        self._bounds = (most_load, *ranges["latency"], *ranges["speed"], min(ranges["errors"][1], _MOST_ERRORS))
        self._split()
        #: The fleet's typical latency, as a logarithm: mean over the replicas as they are looked at; 0: nothing yet.
        self.typical = 0.0
        self.refinements = 0
        self._baseline = 0.0

    def _split(self) -> None:
        """Weights by name, for the paths on which a loop would cost more than the sum."""
        weights = self.weights
        self._expected, load, in_flight, latency, self._peak = weights[:5]
        speed, errors, age, self._memory = weights[5:9]
        self._factors = (load, in_flight, latency, speed, errors, age)
        self.outlook, self.outlook_when_tight, self.speed_when_large = weights[9:]
        self._seldom = bool(self._expected or self._peak or self._memory)

    @property
    def typical_ns(self) -> float:
        return exp(self.typical)

    def look(self, view: View, replica: Replica, now: int) -> None:
        """Looks at a replica anew: its outlook, and the part of its score that does not change with time."""
        view.due = now + LOOK_NS
        report, in_flight, latency_ns = replica.report, replica.in_flight, replica.latency_ns
        run_ns: float = report.run_ns
        reported_at = replica.reported_at
        age = now - reported_at
        if run_ns and age <= NEWS_NS:
            since = replica.sent_since
            load = report.in_flight + since
            if load < in_flight:
                load = in_flight
            view.free_at = reported_at + report.wait_ns + since * run_ns
            news = age / NEWS_NS
        else:
            # Seen from here alone, as with servers that tell nothing: no more is known than how long requests take.
            run_ns = replica.expected_ns(now)
            load = replica.load(now)
            view.free_at, news = 0.0, 1.0
        if not latency_ns or not run_ns:
            view.base = UNKNOWN
            return
        view.run_ns = run_ns
        view.speed = speed = log(run_ns)
        latency = log(latency_ns)
        errors, typical = replica.error_rate, self.typical
        self.typical = typical = typical + (latency - typical) * _GAIN if typical else latency
        most_load, quickest, longest, fastest, slowest, most_errors = self._bounds
        if (
            load <= most_load
            and quickest <= latency - typical <= longest
            and fastest <= speed - typical <= slowest
            and errors <= most_errors
        ):
            by_load, by_in_flight, by_latency, by_speed, by_errors, by_age = self._factors
            base = by_load * _LOGS[load] + by_in_flight * _LOGS[in_flight]
            base += by_latency * latency + by_speed * speed + by_errors * errors + by_age * news
            view.base = base + self._seldom_used(replica, now) if self._seldom else base
        else:
            view.base = UNKNOWN

    def _seldom_used(self, replica: Replica, now: int) -> float:
        """The figures that training may find useless, and then cost nothing."""
        expected, peak = log(replica.expected_ns(now)), log(replica.peak_ns)
        (low, high), (lowest, highest) = self._expected_range, self._peak_range
        if not (low <= expected - self.typical <= high and lowest <= peak - self.typical <= highest):
            return UNKNOWN
        return (
            self._expected * expected + self._peak * peak + self._memory * lack_of_memory(replica.endpoint.free_memory)
        )

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
        centred = lot.centred
        residual = paid - self._baseline - sum(map(mul, self.weights, centred))
        self._baseline += (paid - self._baseline) / 16
        residual = max(-_CLIPPED, min(_CLIPPED, residual))
        # Normalised, so that a request with extreme figures moves the weights no further than another.
        pull = self._step * residual / (1 + sum(map(mul, centred, centred)))
        rows = zip(self.weights, centred, self._lowest, self._highest, strict=True)
        self.weights = [
            lowest if (moved := weight + pull * figure) < lowest else highest if moved > highest else moved
            for weight, figure, lowest, highest in rows
        ]
        self._split()


def cost(lot: Lot, latency_ns: int, now: int) -> float:
    """What a request cost: its latency as a logarithm, and a penalty for a missed deadline."""
    return log(max(1, latency_ns)) + (MISSED if now > lot.deadline else 0.0)
