"""Service-level objectives of a run: ``p99<20ms,errors<0.1%``, and whether a summary shows that they are kept.

A percentile is judged by the share of requests over its limit: of ``p99<20ms``, at most 1 % may take 20 ms or longer. A
request without an answer is over every limit; a server that rejects its load would keep any percentile otherwise. A
verdict needs the exact interval of that share to lie on one side; until then there are not enough requests to tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from isochrone.bench.analysis.binomial import CONFIDENCE
from isochrone.bench.analysis.distribution import Evidence, evidence_of
from isochrone.bench.analysis.summary import Summary, is_error
from isochrone.bench.results.outcomes import FAILED, LATE, REJECTED, UNSENT
from isochrone.clock import MICROSECOND, MILLISECOND, SECOND
from isochrone.errors import FlagError
from isochrone.suggestions import choice

_FLAG: Final = "--slo"
_EXPECTED: Final = "objectives such as 'p99<20ms' or 'p99.9<=50ms,errors<0.1%'"
_FORM: Final = re.compile(
    r"\s*(?P<measure>[a-z_]+[0-9.]*)\s*(?P<sign><=?)\s*(?P<number>[0-9]*\.?[0-9]+)\s*(?P<unit>\S*)\s*"
)
_PERCENTILE: Final = re.compile(r"(?P<first>ttft_)?p(?P<percent>[0-9]+(?:\.[0-9]+)?)")
_UNITS: Final = {"ns": 1, "us": MICROSECOND, "µs": MICROSECOND, "ms": MILLISECOND, "s": SECOND}
_OUTCOMES: Final = {"late": LATE, "rejected": REJECTED, "failed": FAILED, "unsent": UNSENT}
_SHARES: Final = ("errors", *_OUTCOMES)
_MEASURES: Final = ("p99", "ttft_p99", "max", "ttft_max", *_SHARES)


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    UNCLEAR = "not enough requests to tell"


@dataclass(frozen=True, slots=True)
class Objective:
    """One limit: at most ``allowed`` of the requests may be over it."""

    #: As written, without spaces.
    text: str
    allowed: float
    #: Of a percentile or ``max``: the limit of a duration; None: requests with an outcome are counted.
    limit_ns: int | None
    #: ``<=``: a duration equal to the limit keeps it.
    allow_equal: bool
    first_token: bool = False
    #: Of a share: which outcome; None: every error.
    outcome: int | None = None

    def evidence(self, summary: Summary) -> Evidence:
        part = summary.total
        if self.limit_ns is not None:
            durations = part.every_first_token if self.first_token else part.every_latency
            return durations.over(self.limit_ns, allow_equal=self.allow_equal)
        return evidence_of(is_error(part.outcome) if self.outcome is None else part.outcome == self.outcome)

    def judge(self, evidence: Evidence) -> Judgement:
        return Judgement(self, evidence, self._verdict(evidence))

    def keeps(self, evidence: Evidence) -> bool:
        """Whether the measured share keeps the objective, without regard to confidence."""
        return evidence.over <= self.allowed * evidence.total

    def _verdict(self, evidence: Evidence) -> Verdict:
        if not evidence.total:
            return Verdict.UNCLEAR
        if self.allowed == 0:
            # No number of requests shows that none will ever be over: this is a statement on the run alone.
            return Verdict.MISSED if evidence.over else Verdict.MET
        share = evidence.share
        if share.high <= self.allowed:
            return Verdict.MET
        return Verdict.MISSED if share.low > self.allowed else Verdict.UNCLEAR


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one objective, with what it rests on."""

    objective: Objective
    evidence: Evidence
    verdict: Verdict

    @property
    def sentence(self) -> str:
        objective, evidence = self.objective, self.evidence
        counted = f"{evidence.over:,} of {evidence.total:,} requests ({_percent(evidence.share.value)})"
        if objective.limit_ns is None:
            counted += f" {'with an error' if objective.outcome is None else objective.text.split('<')[0]}"
        else:
            counted += " over the limit or without an answer"
        allowed = "none" if objective.allowed == 0 else f"at most {_percent(objective.allowed)}"
        text = f"{objective.text} {self.verdict}: {counted}; {allowed} may be"
        if self.verdict is not Verdict.UNCLEAR:
            return text
        if evidence.effective < evidence.total:
            text += f"; they are as correlated as {evidence.effective:,} independent ones"
        fewest = fewest_requests(objective.allowed)
        if evidence.effective < fewest:
            return f"{text}; measure longer: at least {fewest:,} requests are needed"
        return f"{text}; measure longer, or at another rate"


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives that must all be kept."""

    objectives: tuple[Objective, ...]

    def __str__(self) -> str:
        return ",".join(each.text for each in self.objectives)

    @property
    def needs_streams(self) -> bool:
        """Whether an objective limits the time to the first token."""
        return any(each.first_token for each in self.objectives)

    def evidence(self, summary: Summary) -> tuple[Evidence, ...]:
        """Of each objective."""
        return tuple(each.evidence(summary) for each in self.objectives)

    def judge(self, summary: Summary) -> tuple[Judgement, ...]:
        """Of each objective."""
        return tuple(each.judge(each.evidence(summary)) for each in self.objectives)

    def verdict(self, evidence: Sequence[Evidence]) -> Verdict:
        """On all objectives together, by the evidence of each."""
        judgements = [each.judge(of) for each, of in zip(self.objectives, evidence, strict=True)]
        return overall(judgements)

    def keeps(self, evidence: Sequence[Evidence]) -> bool:
        return all(each.keeps(of) for each, of in zip(self.objectives, evidence, strict=True))


def overall(judgements: Sequence[Judgement]) -> Verdict:
    verdicts = [each.verdict for each in judgements]
    if Verdict.MISSED in verdicts:
        return Verdict.MISSED
    return Verdict.UNCLEAR if Verdict.UNCLEAR in verdicts else Verdict.MET


def fewest_requests(allowed: float) -> int:
    """How many independent requests show that at most ``allowed`` are over a limit, if none of them is."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-allowed)) if 0 < allowed < 1 else 1


def parse_slo(text: str) -> Slo:
    """Raises ``FlagError``, which names the objective and what to write instead."""
    if not text.strip():
        raise FlagError(_FLAG, _EXPECTED, "nothing")
    objectives = tuple(_objective(part) for part in text.split(","))
    measures = [each.text.split("<")[0] for each in objectives]
    for measure in measures:
        if measures.count(measure) > 1:
            raise FlagError(_FLAG, f"one objective for {measure}", repr(text))
    return Slo(objectives)


def _objective(text: str) -> Objective:
    form = _FORM.fullmatch(text)
    if form is None:
        raise FlagError(_FLAG, _EXPECTED, repr(text.strip()))
    measure, sign, number, unit = form["measure"], form["sign"], float(form["number"]), form["unit"]
    plain = f"{measure}{sign}{form['number']}{unit}"
    percentile = _PERCENTILE.fullmatch(measure)
    if percentile is None and measure not in ("max", "ttft_max", *_SHARES):
        raise FlagError(_FLAG, choice(measure, _MEASURES), repr(plain))
    if measure in _SHARES:
        return _share(plain, measure, sign, number, unit)
    if unit not in _UNITS:
        raise FlagError(_FLAG, f"a duration such as {measure}{sign}20ms (ns, us, ms or s)", repr(plain))
    limit = round(number * _UNITS[unit])
    if limit <= 0:
        raise FlagError(_FLAG, f"a limit of {measure} above 0", repr(plain))
    percent = 100.0 if percentile is None else float(percentile["percent"])
    if percentile is not None and not 0 < percent < 100:
        raise FlagError(_FLAG, "a percentile above 0 and below 100, or max", repr(plain))
    # Rounded: 1 - 0.999 is more than 0.001 in floating point.
    allowed = round(1 - percent / 100, 12)
    return Objective(plain, allowed, limit, sign == "<=", first_token=measure.startswith("ttft_"))


def _share(text: str, measure: str, sign: str, number: float, unit: str) -> Objective:
    if unit != "%":
        raise FlagError(_FLAG, f"a share such as {measure}{sign}0.1%", repr(text))
    if number >= 100 or (number <= 0 and sign == "<"):
        expected = f"a share of {measure} above 0% and below 100%, or {measure}<=0%"
        raise FlagError(_FLAG, expected, repr(text))
    return Objective(text, number / 100, None, sign == "<=", outcome=_OUTCOMES.get(measure))


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
