"""The search for the highest rate that keeps an SLO. Pure: it proposes rates, and is given what they measured.

The rate doubles until one misses the SLO, then the interval between kept and missed is bisected. Three rules make the
same server give the same limit:

- A rate without a clear verdict is measured again, and the requests of such runs count together.
- One missed run proves nothing, since a pause of the machine misses any SLO: a rate is missed when two more runs missed
  it than kept it.
- Both rates that the search would end with are confirmed by further runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce

from isochrone.bench.analysis.distribution import Evidence
from isochrone.bench.analysis.slo import Slo, Verdict
from isochrone.bench.analysis.summary import Summary
from isochrone.errors import FlagError

_GROWTH = 2.0
#: A rate that is still unclear after so many runs is decided by its measured share: it is the limit within noise.
_MOST_RUNS = 9
#: By how many runs one verdict has to lead, to go on with and to end with.
_KEPT_LEAD, _KEPT_CONFIRMED = 1, 2
_MISSED_LEAD, _MISSED_CONFIRMED = 2, 4


@dataclass(frozen=True, slots=True)
class RampResult:
    """Between which rates the limit lies."""

    #: The highest rate that kept the SLO; None: the lowest rate missed it.
    rate: float | None
    #: The lowest rate that missed the SLO; None: the highest rate kept it.
    missed_rate: float | None
    runs: int
    #: Whether every verdict that bounds the interval was shown with confidence.
    is_clear: bool
    slo: str
    #: Why the generator, and not the server, may have missed the SLO at ``missed_rate``; "": it did not.
    generator: str = ""

    @property
    def sentence(self) -> str:
        if self.generator:
            return (
                f"{_shown(self.rate)} requests/s keep {self.slo}. Whether the server does at {_shown(self.missed_rate)}"
                f" is not known. {self.generator}"
            )
        if self.rate is None:
            return f"No rate keeps {self.slo}: {_shown(self.missed_rate)} requests/s miss it. Lower --rate."
        if self.missed_rate is None:
            return f"{_shown(self.rate)} requests/s keep {self.slo}, the highest rate of the search. Raise --max-rate."
        doubt = "" if self.is_clear else " Runs at the limit disagree: measure each rate longer for a clear verdict."
        return (
            f"The highest rate that keeps {self.slo} is between {_shown(self.rate)} and {_shown(self.missed_rate)}"
            f" requests/s, by {self.runs} runs.{doubt}"
        )


@dataclass(slots=True)
class _Trial:
    """What one rate has measured."""

    runs: list[tuple[Evidence, ...]] = field(default_factory=list)

    def verdict(self, slo: Slo, *, is_confirmed: bool = False) -> Verdict:
        """``is_confirmed``: one that the search can end with."""
        lead = self._lead(slo)
        if lead >= (_KEPT_CONFIRMED if is_confirmed else _KEPT_LEAD):
            return Verdict.MET
        if lead <= -(_MISSED_CONFIRMED if is_confirmed else _MISSED_LEAD):
            return Verdict.MISSED
        if len(self.runs) < _MOST_RUNS:
            return Verdict.UNCLEAR
        if lead:
            return Verdict.MET if lead > 0 else Verdict.MISSED
        return Verdict.MET if slo.keeps(_together(self.runs)) else Verdict.MISSED

    def is_clear(self, slo: Slo) -> bool:
        return not -_MISSED_LEAD < self._lead(slo) < _KEPT_LEAD

    def _lead(self, slo: Slo) -> int:
        """Runs that kept the SLO less runs that missed it. Unclear ones count together, as many as they are."""
        verdicts = [slo.verdict(run) for run in self.runs]
        lead = verdicts.count(Verdict.MET) - verdicts.count(Verdict.MISSED)
        unclear = [run for run, verdict in zip(self.runs, verdicts, strict=True) if verdict is Verdict.UNCLEAR]
        if unclear:
            together = slo.verdict(_together(unclear))
            lead += len(unclear) if together is Verdict.MET else -len(unclear) if together is Verdict.MISSED else 0
        return lead


class Ramp:
    """The search between two rates; ends when kept and missed differ by at most ``tolerance`` of the kept rate."""

    def __init__(self, slo: Slo, low: float, high: float, tolerance: float = 0.02) -> None:
        if not 0 < low <= high < math.inf:
            raise FlagError("--max-rate", f"a rate from --rate ({low:g}, above 0) on", f"{high:g}")
        if not 0 < tolerance < 1:
            raise FlagError("--tolerance", "a share above 0 and below 1", f"{tolerance:g}")
        self._slo = slo
        self._low, self._high, self._tolerance = low, high, tolerance
        self._trials: dict[float, _Trial] = {}
        #: What was said of the generator, by rate.
        self._generator: dict[float, str] = {}

    def next_rate(self) -> float | None:
        """The rate to measure next; None: the search has ended."""
        for rate, trial in self._trials.items():
            if trial.verdict(self._slo) is Verdict.UNCLEAR:
                return rate
        kept, missed = self.interval
        if missed is None:
            if kept is None:
                return self._low
            return min(kept * _GROWTH, self._high) if kept < self._high else self._unconfirmed(kept)
        if kept is None:
            return self._unconfirmed(missed) if missed <= self._low else self._low
        if missed <= kept * (1 + self._tolerance):
            return self._unconfirmed(kept) or self._unconfirmed(missed)
        return math.sqrt(kept * missed)

    def observe(self, rate: float, summary: Summary, generator: str | None = None) -> None:
        """``rate``: as ``next_rate`` gave it. ``generator``: the sentence on it if it was the run's bottleneck."""
        self._trials.setdefault(rate, _Trial()).runs.append(self._slo.evidence(summary))
        if generator:
            self._generator[rate] = generator

    @property
    def result(self) -> RampResult | None:
        """None while the search goes on."""
        if self.next_rate() is not None:
            return None
        kept, missed = self.interval
        bounds = [self._trials[rate] for rate in (kept, missed) if rate is not None]
        return RampResult(
            rate=kept,
            missed_rate=missed,
            runs=self.runs,
            is_clear=all(trial.is_clear(self._slo) for trial in bounds),
            slo=str(self._slo),
            generator="" if missed is None else self._generator.get(missed, ""),
        )

    @property
    def runs(self) -> int:
        return sum(len(trial.runs) for trial in self._trials.values())

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The highest rate that kept the SLO and the lowest that missed it, so far."""
        verdicts = {rate: trial.verdict(self._slo) for rate, trial in self._trials.items()}
        missed = min((rate for rate, verdict in verdicts.items() if verdict is Verdict.MISSED), default=None)
        kept = max(
            (
                rate
                for rate, verdict in verdicts.items()
                if verdict is Verdict.MET and (missed is None or rate < missed)
            ),
            default=None,
        )
        return kept, missed

    def _unconfirmed(self, rate: float) -> float | None:
        verdict = self._trials[rate].verdict(self._slo, is_confirmed=True)
        return rate if verdict is Verdict.UNCLEAR else None


def _together(runs: list[tuple[Evidence, ...]]) -> tuple[Evidence, ...]:
    return reduce(lambda one, other: tuple(a + b for a, b in zip(one, other, strict=True)), runs)


def _shown(rate: float | None) -> str:
    return "0" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
