"""The model of the learned policy: one weight per feature, the ranges met in training, and the margin of confidence.

A score is the sum of weights times features. A lower score means an earlier answer, in logarithms of time. Weights come
from a JSON file written by ``isochrone simulate train``; the one beside this module is the default. Online refinement
changes them in small steps, by at most ``drift`` of the file's values.
"""

from __future__ import annotations

from math import exp, log
from operator import mul, sub
from pathlib import Path
from typing import NamedTuple

import msgspec

from isochrone.errors import ConfigError
from isochrone.gateway.policies.learned.features import NAMES, Seen, View, figures, lack_of_memory
from isochrone.gateway.replicas import FRESH_NS, Replica

#: Trained by ``isochrone simulate train``; docs/learned.md has the command and the figures.
SHIPPED = Path(__file__).with_name("weights.json")
#: A missed deadline costs as much as e times the latency.
MISSED = 1.0
#: Residuals are clipped: a larger one says more about the request than about the weights.
_CLIPPED = 2.0
#: A view is recomputed this often: a load report expires without an event.
REFRESH_NS = FRESH_NS // 2
#: The score of a replica that has not answered yet, or whose figures are outside the range of training.
UNKNOWN = float("inf")
#: A replica that fails more often than this is never chosen by the model, whatever the range of training.
_MOST_ERRORS = 0.1
_GAIN = 1 / 128
#: log(1 + n) by n.
_LOGS = [log(1 + count) for count in range(4096)]


class Lot(NamedTuple):
    """A request that was placed at random in the safe set."""

    #: Features of its replica less the mean over all candidates, and that mean.
    centred: list[float]
    means: list[float]
    deadline: int


class Draw:
    """The candidates of a random placement. The ``Lot`` is computed from them when the request is over: its logarithms
    and means would cost the choice more than everything else."""

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
    """The content of a weights file."""

    #: By feature.
    weights: dict[str, float]
    #: Lowest and highest value in training; times relative to the fleet's typical latency.
    ranges: dict[str, tuple[float, float]]
    #: Prequal's choice stands unless another score is lower by this.
    margin: float
    #: Its origin: command, seed, episodes.
    trained: dict[str, str | int | float] = {}


def read(path: Path) -> Weights:
    """Read a weights file."""
    where = str(path)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Weights)
    except OSError as error:
        raise ConfigError(where, "file", "a readable JSON file", error.strerror or str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where, "file", "weights as `isochrone simulate train` writes them", str(error)) from None
    for key, given in (("weights", found.weights), ("ranges", found.ranges)):
        if set(given) != set(NAMES):
            missing, unknown = sorted(set(NAMES) - set(given)), sorted(set(given) - set(NAMES))
            problem = f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
            raise ConfigError(where, key, f"one value for each of {', '.join(NAMES)}", problem)
    for name, weight in found.weights.items():
        if not weight >= 0:
            raise ConfigError(where, f"weights.{name}", "a number from 0 on", repr(weight))
    if not found.margin >= 0:
        raise ConfigError(where, "margin", "a number from 0 on", repr(found.margin))
    return found


def check_writable(path: Path) -> None:
    """Raise if a weights file cannot be written there: before minutes of training, not after."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(str(path), "file", "a file in a folder that exists", "a folder" if path.is_dir() else "none")


def write(weights: Weights, path: Path) -> None:
    """Write a weights file. The same weights give the same bytes."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(weights), indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(str(path), "file", "a file that can be written", error.strerror or str(error)) from None


class Model:
    """Computes scores. ``step``: of the refinement; ``drift``: its limit, as a share of a weight."""

    def __init__(self, given: Weights, step: float = 0.0, drift: float = 0.0) -> None:
        self.margin = given.margin
        self.weights = [given.weights[name] for name in NAMES]
        # A weight of 0 stays 0, and none becomes negative: more load must not improve a score.
        self._lowest = [weight * (1 - drift) for weight in self.weights]
        self._highest = [weight * (1 + drift) for weight in self.weights]
        self._step = step
        ranges = given.ranges
        self._expected_range, self._peak_range = ranges["expected"], ranges["peak"]
        most_load = int(exp(min(ranges["load"][1], log(len(_LOGS))))) - 1
        #: One tuple, like ``_factors``: one attribute read instead of many.
        self._bounds = (most_load, *ranges["latency"], *ranges["speed"], min(ranges["errors"][1], _MOST_ERRORS))
        self._split()
        #: The logarithm of the fleet's typical latency, a running mean over refreshed replicas; 0: unknown yet.
        self.typical = 0.0
        self.refinements = 0
        self._baseline = 0.0

    def _split(self) -> None:
        """Keep the weights by name, for paths on which a loop would cost more than the sum."""
        weights = self.weights
        self._expected, load, in_flight, latency, self._peak = weights[:5]
        speed, errors, age, self._memory = weights[5:9]
        self._factors = (load, in_flight, latency, speed, errors, age)
        self.outlook, self.outlook_when_tight, self.speed_when_large = weights[9:]
        self._seldom = bool(self._expected or self._peak or self._memory)

    @property
    def typical_ns(self) -> float:
        return exp(self.typical)

    def refresh(self, view: View, replica: Replica, now: int) -> None:
        """Recompute a replica's outlook, and the part of its score that does not change with time."""
        view.due = now + REFRESH_NS
        report, in_flight, latency_ns = replica.report, replica.in_flight, replica.latency_ns
        run_ns: float = report.run_ns
        reported_at = replica.reported_at
        age = now - reported_at
        if run_ns and age <= FRESH_NS:
            since = replica.sent_since
            load = report.in_flight + since
            if load < in_flight:
                load = in_flight
            view.free_at = reported_at + report.wait_ns + since * run_ns
            news = age / FRESH_NS
        else:
            # No fresh load report: only the latency measured here is known.
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
        """The features that training may give a weight of 0, so that they cost nothing."""
        expected, peak = log(replica.expected_ns(now)), log(replica.peak_ns)
        (low, high), (lowest, highest) = self._expected_range, self._peak_range
        if not (low <= expected - self.typical <= high and lowest <= peak - self.typical <= highest):
            return UNKNOWN
        return (
            self._expected * expected + self._peak * peak + self._memory * lack_of_memory(replica.endpoint.free_memory)
        )

    def refine(self, lot: Lot, latency_ns: int, now: int) -> None:
        """Learn from the latency of a request that was placed at random.

        Because of the random draw, its centred features have mean 0 whatever the state of the fleet. So any baseline is
        valid; a running mean is the cheapest.
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
        # Normalised, so that extreme features do not move the weights further than others.
        pull = self._step * residual / (1 + sum(map(mul, centred, centred)))
        rows = zip(self.weights, centred, self._lowest, self._highest, strict=True)
        self.weights = [
            lowest if (moved := weight + pull * figure) < lowest else highest if moved > highest else moved
            for weight, figure, lowest, highest in rows
        ]
        self._split()


def cost(lot: Lot, latency_ns: int, now: int) -> float:
    """The cost of a request: the logarithm of its latency, and a penalty for a missed deadline."""
    return log(max(1, latency_ns)) + (MISSED if now > lot.deadline else 0.0)
