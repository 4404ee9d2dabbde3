"""Judges a canary step by its failures and latencies: promote, wait, or roll back. Pure.

``judge`` takes the counts since the step began and may be called at any time. It tests only at looks: when the smaller
of the two counts has grown by √2 since the last look. The allowed probability of a false alarm is divided in advance:
evenly over the steps and the two tests; by its k-th look a step has spent α·k/(k+1) (Bonferroni: a union bound, so it
holds however looks depend on each other, for any number of looks, and whenever a step ends).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isochrone.control.evaluation.figures import Figures
from isochrone.control.evaluation.significance import Evidence, failure_evidence, latency_evidence
from isochrone.control.state.rollout_records import CanaryRule

WAIT, PROMOTE, ROLL_BACK = "wait", "promote", "roll_back"

#: A look is due when the number of requests has grown by this factor since the last.
_GROWTH = math.sqrt(2)
#: Looks before ``min_samples``, the first at an eighth of it. They test failures only and can only roll back, so that a
#: broken version does not fail all those requests first. They do not test latency: new instances are slow at first.
_EARLY = 6
#: A version is promoted if the probability that it is worse than allowed is at most this.
_DOUBT = 0.1
#: Below this share of ``min_samples`` the figures show nothing, however long the step took.
_TOO_FEW = 0.1


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do with the canary of one model, and why, with the figures."""

    #: "wait", "promote" or "roll_back".
    kind: str
    reason: str
    #: Looks in this step so far: the next call's ``looks_before``.
    looks: int = 0


def judge(rule: CanaryRule, stable: Figures, canary: Figures, seconds: float, looks_before: int) -> Judgement:
    """Figures and ``seconds`` are since the step began; ``looks_before``: the ``looks`` of the last judgement."""
    fewer = min(stable.requests, canary.requests)
    if seconds >= rule.max_seconds:
        return _last_look(rule, stable, canary, seconds, looks_before)
    due = _look_at(fewer, rule.min_samples)
    if due < looks_before:
        return Judgement(WAIT, _between_looks(rule, stable, canary, seconds, looks_before), looks_before)
    # This look also spends the allowance of looks that were skipped.
    failures = _failure_evidence(rule, stable, canary)
    if failures.worse <= _allowance(rule, looks_before, due):
        return Judgement(ROLL_BACK, _failures_worse(rule, stable, canary, failures), due + 1)
    if due < _EARLY or seconds < rule.min_seconds:
        return Judgement(WAIT, _progress(rule, stable, canary, seconds), due + 1)
    latency = _latency_evidence(rule, stable, canary)
    if latency.worse <= _allowance(rule, max(0, looks_before - _EARLY), due - _EARLY):
        return Judgement(ROLL_BACK, _latency_worse(rule, stable, canary, latency), due + 1)
    text = _not_worse(rule, stable, canary, failures, latency)
    if max(failures.not_worse, latency.not_worse) <= _DOUBT:
        return Judgement(PROMOTE, f"not worse: {text}", due + 1)
    return Judgement(WAIT, f"not sure yet: {text}", due + 1)


def _last_look(rule: CanaryRule, stable: Figures, canary: Figures, seconds: float, looks_before: int) -> Judgement:
    """The look at the time limit: it spends all that is left of the allowance."""
    looks = looks_before + 1
    enough = max(1, math.ceil(rule.min_samples * _TOO_FEW))
    if min(stable.requests, canary.requests) < enough:
        counts = f"{canary.requests:,} and {stable.requests:,} in {seconds:.0f} s"
        return Judgement(
            ROLL_BACK, f"not enough requests: {counts}, expected at least {enough:,} of each version", looks
        )
    failures, latency = _failure_evidence(rule, stable, canary), _latency_evidence(rule, stable, canary)
    if failures.worse <= _allowance(rule, looks_before, None):
        return Judgement(ROLL_BACK, _failures_worse(rule, stable, canary, failures), looks)
    if latency.worse <= _allowance(rule, max(0, looks_before - _EARLY), None):
        return Judgement(ROLL_BACK, _latency_worse(rule, stable, canary, latency), looks)
    text = _not_worse(rule, stable, canary, failures, latency)
    return Judgement(PROMOTE, f"not shown worse in {seconds:.0f} s: {text}", looks)


def _look_at(requests: int, min_samples: int) -> int:
    """The last look that is due at this number of requests, counted from 0; -1: none."""
    first = max(1.0, min_samples / _GROWTH**_EARLY)
    # The small addition: a power that a double rounds down must not skip a look.
    return math.floor(math.log(requests / first, _GROWTH) + 1e-9) if requests >= first * (1 - 1e-9) else -1


def _requests_at(look: int, min_samples: int) -> int:
    """The number of requests at which a look is due."""
    return math.ceil(max(1.0, min_samples / _GROWTH**_EARLY) * _GROWTH**look * (1 - 1e-9))


def _allowance(rule: CanaryRule, first: int, last: int | None) -> float:
    """The probability of a false alarm that one test may spend on looks ``first`` to ``last``; None: on all later
    looks."""
    whole = rule.significance / max(1, len(rule.weights)) / 2
    return whole * (1 / (first + 1) - (0.0 if last is None else 1 / (last + 2)))


def _failure_evidence(rule: CanaryRule, stable: Figures, canary: Figures) -> Evidence:
    return failure_evidence(canary.failures, canary.requests, stable.failures, stable.requests, rule.error_margin)


def _latency_evidence(rule: CanaryRule, stable: Figures, canary: Figures) -> Evidence:
    return latency_evidence(canary.histogram, stable.histogram, rule.quantile, rule.latency_ratio)


# Texts. The canary's figure always comes first.


def _failures_text(rule: CanaryRule, stable: Figures, canary: Figures) -> str:
    more = (canary.failure_share - stable.failure_share) * 100
    shares = f"{canary.failure_share:.2%} failures against {stable.failure_share:.2%}"
    return f"{shares} ({more:+.2f} points, allowed {rule.error_margin * 100:+.2f})"


def _latency_text(rule: CanaryRule, stable: Figures, canary: Figures) -> str:
    new, old = canary.quantile(rule.quantile), stable.quantile(rule.quantile)
    ratio = f"×{new / old:.2f}" if old else "no ratio"
    name = f"p{rule.quantile * 100:g}"
    return f"{name} {_milliseconds(new)} against {_milliseconds(old)} ({ratio}, allowed ×{rule.latency_ratio:.2f})"


def _failures_worse(rule: CanaryRule, stable: Figures, canary: Figures, evidence: Evidence) -> str:
    return f"{_failures_text(rule, stable, canary)}, {_chance(evidence.worse)}, {_counts(stable, canary)}"


def _latency_worse(rule: CanaryRule, stable: Figures, canary: Figures, evidence: Evidence) -> str:
    return f"{_latency_text(rule, stable, canary)}, {_chance(evidence.worse)}, {_counts(stable, canary)}"


def _not_worse(rule: CanaryRule, stable: Figures, canary: Figures, failures: Evidence, latency: Evidence) -> str:
    return (
        f"{_latency_text(rule, stable, canary)}, {_chance(latency.not_worse)}; "
        f"{_failures_text(rule, stable, canary)}, {_chance(failures.not_worse)}; {_counts(stable, canary)}"
    )


def _progress(rule: CanaryRule, stable: Figures, canary: Figures, seconds: float) -> str:
    return (
        f"{_counts(stable, canary)} in {seconds:.0f} s, "
        f"judged from {rule.min_samples:,} of each and {rule.min_seconds:g} s on"
    )


def _between_looks(rule: CanaryRule, stable: Figures, canary: Figures, seconds: float, looks: int) -> str:
    """The figures without probabilities: those are computed at looks only."""
    if looks <= _EARLY or seconds < rule.min_seconds:
        return _progress(rule, stable, canary, seconds)
    return (
        f"not sure yet: {_latency_text(rule, stable, canary)}; {_failures_text(rule, stable, canary)}; "
        f"{_counts(stable, canary)} in {seconds:.0f} s, next look at {_requests_at(looks, rule.min_samples):,} of each"
    )


def _counts(stable: Figures, canary: Figures) -> str:
    return f"{canary.requests:,} and {stable.requests:,} requests"


def _chance(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _milliseconds(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.1f} ms" if milliseconds >= 10 else f"{milliseconds:.3g} ms"
