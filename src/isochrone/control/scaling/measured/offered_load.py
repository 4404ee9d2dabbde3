"""The requests that gateways receive for the models of one pool, from two readings of their counters. Pure.

A missing page never counts as zero: the last rate of a gateway that is silent holds for a while, then the load is not
known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import NamedTuple

from isochrone.control.scaling.reading.fleet_counters import FleetReading, GatewayCounts, RequestCounts

#: The last rate of a gateway that does not answer holds for this long.
_CARRY_SECONDS = 15.0
#: Counters of a gateway that is not registered any more are kept for this long: it may register again.
_KEEP_SECONDS = 300.0
_NONE = RequestCounts()


class Rates(NamedTuple):
    """Requests per second for one model, and those that wait now."""

    offered: float = 0.0
    refused: float = 0.0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """Of the models of a pool, whatever other pools they are in."""

    #: By model, as far as it is known.
    by_model: Mapping[str, Rates] = field(default_factory=dict)
    #: Whether all gateways are in it.
    is_known: bool = False
    #: Why not, where a gateway is the cause.
    problem: str = ""
    #: Instant of the oldest counters that were used.
    oldest: float = 0.0


@dataclass(slots=True)
class _Gateway:
    """What is known of one gateway."""

    counts: GatewayCounts
    #: Of its last answer, and of the reading that asked for it.
    instant: float
    read_at: float
    #: By model; None: it has been read once, and the age of its counters is not known.
    rates: Mapping[str, Rates] | None = None
    #: By model: requests received before the first reading that count with the next one.
    owed: Mapping[str, float] = field(default_factory=dict)
    #: When a counter was last found lower than before: the process had restarted, and its record may follow.
    fell_at: float = float("-inf")


class OfferedLoad:
    """State of one pool."""

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}
        self._instant: float | None = None

    def take(self, reading: FleetReading, models: Collection[str], *, is_empty: bool) -> GatewayLoad:
        """``is_empty``: the pool has no worker, nor does one start. What a gateway had received before its first
        reading is then taken for a request: a pool that wakes without need sleeps again."""
        elapsed = None if self._instant is None else reading.instant - self._instant
        for name, counts in reading.gateways.items():
            if counts is not None:
                known, instant = self._gateways.get(name), reading.instant_of(counts)
                if known is None:
                    known = _first(counts, instant, reading.instant, models, elapsed, is_empty=is_empty)
                    self._gateways[name] = known
                elif instant > known.instant:
                    _advance(known, counts, instant, models)
                known.read_at = reading.instant
        self._instant = reading.instant
        for name, known in list(self._gateways.items()):
            if name not in reading.gateways and reading.instant - known.instant > _KEEP_SECONDS:
                del self._gateways[name]
        return self._load(reading, models)

    def _load(self, reading: FleetReading, models: Collection[str]) -> GatewayLoad:
        silent = [name for name in reading.gateways if not self._says(name, reading.instant)]
        known = [self._gateways[name] for name in reading.gateways if name in self._gateways]
        fresh = [each for each in known if reading.instant - each.instant <= _CARRY_SECONDS]
        rates = [each.rates for each in fresh if each.rates is not None]
        by_model = {
            model: Rates(
                fsum(each[model].offered for each in rates if model in each),
                fsum(each[model].refused for each in rates if model in each),
                sum(each.counts.models.get(model, _NONE).waiting for each in fresh),
            )
            for model in models
        }
        return GatewayLoad(
            by_model,
            bool(rates) and not silent,
            _problem(reading, silent),
            min((each.instant for each in fresh), default=reading.instant),
        )

    def _says(self, name: str, now: float) -> bool:
        """Whether the rates of a gateway are known. One that answered for the first time adds nothing yet; one that did
        not answer must have a rate to carry."""
        known = self._gateways.get(name)
        if known is None or now - known.instant > _CARRY_SECONDS:
            return False
        return known.rates is not None or known.read_at == now


def _problem(reading: FleetReading, silent: Collection[str]) -> str:
    if not reading.gateways:
        return "no gateway is registered"
    return "; ".join(
        f"gateway {name} has no metrics page: set metrics_port"
        if name in reading.without_page
        else f"gateway {name} does not answer"
        for name in sorted(silent)
    )


def _first(
    counts: GatewayCounts,
    instant: float,
    read_at: float,
    models: Collection[str],
    elapsed: float | None,
    *,
    is_empty: bool,
) -> _Gateway:
    asked = [model for model in models if counts.models.get(model, _NONE).received > 0] if is_empty else []
    # One request, whatever the counters say: how long it took to receive the others is not known.
    owed = dict.fromkeys(asked, 1 / len(asked)) if asked else {}
    if not owed or elapsed is None:
        return _Gateway(counts, instant, read_at, owed=owed)
    return _Gateway(counts, instant, read_at, {model: Rates(count / elapsed) for model, count in owed.items()})


def _advance(known: _Gateway, counts: GatewayCounts, instant: float, models: Collection[str]) -> None:
    """Take the next counters of a gateway, whose rates are those since its last answer."""
    elapsed = instant - known.instant
    before: Mapping[str, RequestCounts] = known.counts.models
    # A restart may show in the counters before it shows in the record; it is one restart.
    if counts.incarnation != known.counts.incarnation and elapsed + known.instant - known.fell_at > _CARRY_SECONDS:
        before = {}
    rates: dict[str, Rates] = {}
    for model in models:
        now, last = counts.models.get(model, _NONE), before.get(model, _NONE)
        if now.received < last.received:
            last = _NONE
            if counts.models.get(model) is not None:
                known.fell_at = instant
        refused = _since(now.refused, last.refused)
        arrived = _since(now.received, last.received) - _since(now.turned_away, last.turned_away)
        offered = max(0.0, arrived) + known.owed.get(model, 0.0)
        if offered or refused:
            rates[model] = Rates(offered / elapsed, refused / elapsed)
    known.counts, known.instant, known.rates, known.owed = counts, instant, rates, {}


def _since(now: int, last: int) -> int:
    """A counter that is lower than before has begun again at 0."""
    return now - last if now >= last else now
