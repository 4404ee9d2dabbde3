"""Report of rollouts under load: failures, the pause of a switch, tails beside steady state. Pure.

The pause is reported twice: as the time that gateways held requests, and as clients saw it, the longest answer of a
switch beyond the steady median. Fast switches hold no requests, so theirs is the noise of the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from bench.control.checker import FAST, STRICT, Violation
from bench.control.history import OK, Answer, between

#: Around a switch: gateways switch a moment after the commit, and answers in progress end after it.
_BEFORE_NS, _AFTER_NS = 5_000_000, 30_000_000


@dataclass(frozen=True)
class Switch:
    """One rollout that was done; instants of the clients' clock."""

    cutover: str
    asked_ns: int
    ended_ns: int
    switching_ns: int
    committed_ns: int
    #: The longest that a gateway held requests back; None: not reported.
    held_seconds: float | None = None


@dataclass(frozen=True)
class Quantiles:
    """Of a pause, in milliseconds."""

    count: int
    median: float
    p99: float
    worst: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Quantiles | None:
        if not milliseconds:
            return None
        return cls(
            len(milliseconds),
            statistics.median(milliseconds),
            float(np.quantile(milliseconds, 0.99)),
            max(milliseconds),
        )

    def __str__(self) -> str:
        return f"median {self.median:.2f} ms, p99 {self.p99:.2f} ms, worst {self.worst:.2f} ms ({self.count} switches)"


@dataclass(frozen=True)
class Report:
    """All figures of a run."""

    rollouts: int
    done: int
    requests: int
    failed: int
    violations: list[str]
    #: Milliseconds at p50, p99: steady, during rollouts.
    steady: tuple[float, float]
    during: tuple[float, float]
    held: Quantiles | None
    felt: Mapping[str, Quantiles | None] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """p99 during rollouts over p99 in steady state."""
        return self.during[1] / self.steady[1]

    def lines(self) -> list[str]:
        felt = [f"felt by clients, {cutover:6}: {value or 'none'}" for cutover, value in self.felt.items()]
        return [
            f"rollouts: {self.done} of {self.rollouts} done",
            f"requests: {self.requests}, failed: {self.failed}, violations: {len(self.violations)}",
            f"held by gateways, strict : {self.held or 'not reported'}",
            *felt,
            f"steady : p50 {self.steady[0]:.2f} ms, p99 {self.steady[1]:.2f} ms",
            f"during : p50 {self.during[0]:.2f} ms, p99 {self.during[1]:.2f} ms",
            f"p99 during rollouts / steady: {self.ratio:.2f}",
        ]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio}


def make_report(
    history: Sequence[Answer], switches: Sequence[Switch], rollouts: int, violations: Sequence[Violation], since_ns: int
) -> Report:
    """``since_ns``: when the load had settled; what started before counts for failures alone."""
    good = [answer for answer in history if answer.outcome == OK]
    settled = [answer for answer in good if answer.started_ns >= since_ns]
    windows = [(switch.asked_ns, switch.ended_ns) for switch in sorted(switches, key=lambda one: one.asked_ns)]
    during = between(settled, windows)
    inside = {id(answer) for answer in during}
    steady = [answer for answer in settled if id(answer) not in inside]
    usual = _milliseconds(steady, 0.5)
    held = [1e3 * switch.held_seconds for switch in switches if switch.held_seconds is not None]
    return Report(
        rollouts,
        len(switches),
        len(history),
        len(history) - len(good),
        [str(violation) for violation in violations],
        (usual, _milliseconds(steady, 0.99)),
        (_milliseconds(during, 0.5), _milliseconds(during, 0.99)),
        Quantiles.of(held),
        {cutover: Quantiles.of(_felt(settled, switches, cutover, usual)) for cutover in (FAST, STRICT)},
    )


def _felt(answers: Sequence[Answer], switches: Sequence[Switch], cutover: str, usual: float) -> list[float]:
    found = []
    ordered = sorted(answers, key=lambda one: one.started_ns)
    starts = np.array([answer.started_ns for answer in ordered], dtype=np.int64)
    longest = max((answer.latency_ns for answer in ordered), default=0)
    for switch in switches:
        if switch.cutover != cutover:
            continue
        window = (switch.switching_ns - _BEFORE_NS, switch.committed_ns + _AFTER_NS)
        first, last = np.searchsorted(starts, (window[0] - longest, window[1]))
        under_way = between(ordered[first:last], [window])
        if under_way:
            found.append(max(0.0, max(answer.latency_ns for answer in under_way) / 1e6 - usual))
    return found


def _milliseconds(answers: Sequence[Answer], quantile: float) -> float:
    if not answers:
        return float("nan")
    return float(np.quantile([answer.latency_ns for answer in answers], quantile)) / 1e6
