"""Report of an overload: goodput, share of each class in time, rejections and the time until them. Runs nothing."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bench.gateway.reasons import reasons
from bench.worker.comparison import Spread, Target
from bench.worker.deadline_points import Point, summarise
from bench.worker.generator import Outcome
from bench.worker.machine import describe

HIGH, LOW = "high", "low"
#: A 504 is a refusal if it says so on arrival, the gateway's own or a worker's; one without that was admitted first.
REFUSALS = {429, 503}
AT_THE_GATEWAY = b"no worker can meet the deadline"


@dataclass(frozen=True)
class OverloadPoint:
    """One load in one round. Goodput: answers in time per second over capacity; shares from 0 to 1."""

    percent: float
    capacity: float
    goodput: float
    high_in_time: float
    everybody: Point
    high: Point
    low: Point
    #: Refused by the gateway itself, without asking a worker: how many, and how soon, in ms from when they were sent.
    refused_at_gateway: int
    gateway_refusal_p50_ms: float | None
    gateway_refusal_p99_ms: float | None
    gateway_share: float
    workers_share: float
    #: Reason of rejections and failures, without numbers → count.
    reasons: dict[str, int]


@dataclass
class Run:
    """The results of a run. Capacity: before and after each round, requests per second."""

    settings: dict[str, object]
    points: list[OverloadPoint] = field(default_factory=list)
    capacity: list[tuple[float, float]] = field(default_factory=list)

    def at(self, percent: float) -> list[OverloadPoint]:
        return [point for point in self.points if point.percent == percent]


def subset(outcome: Outcome, chosen: np.ndarray) -> Outcome:
    """The requests of one class, as an outcome of their own."""
    numbers = [int(number) for number in np.flatnonzero(chosen)]
    places = {number: place for place, number in enumerate(numbers)}
    return Outcome(
        scheduled=[outcome.scheduled[number] for number in numbers],
        sent=[outcome.sent[number] for number in numbers],
        answered=[outcome.answered[number] for number in numbers],
        status=[outcome.status[number] for number in numbers],
        errors={places[number]: text for number, text in outcome.errors.items() if number in places},
        cpu_share=outcome.cpu_share,
        waited_for_connection=outcome.waited_for_connection,
    )


def summarise_classes(
    percent: float,
    outcome: Outcome,
    high: np.ndarray,
    deadline_ms: float,
    capacity: float,
    cpu_shares: tuple[float, float],
) -> OverloadPoint:
    """Counts one stretch of load, whole and by class."""
    at_gateway = [number for number, text in outcome.errors.items() if AT_THE_GATEWAY in text]
    waits = [(outcome.answered[number] - outcome.sent[number]) / 1e6 for number in at_gateway]
    said = reasons(outcome, outcome.errors)
    for number in at_gateway:
        # Distinguished by its message above; the counts below treat it as any other rejection.
        outcome.status[number] = 503
    whole, urgent, patient = (
        summarise(name, percent, part, deadline_ms, REFUSALS)
        for name, part in (
            ("all", outcome),
            (HIGH, subset(outcome, high)),
            (LOW, subset(outcome, ~high)),
        )
    )
    return OverloadPoint(
        percent=percent,
        capacity=capacity,
        goodput=whole.goodput_rate / capacity,
        high_in_time=urgent.in_time / urgent.offered,
        everybody=whole,
        high=urgent,
        low=patient,
        refused_at_gateway=len(at_gateway),
        gateway_refusal_p50_ms=float(np.percentile(waits, 50)) if waits else None,
        gateway_refusal_p99_ms=float(np.percentile(waits, 99)) if waits else None,
        gateway_share=cpu_shares[0],
        workers_share=cpu_shares[1],
        reasons=said,
    )


def _spread(values: list[float | None]) -> Spread | None:
    present = [value for value in values if value is not None]
    return Spread.of(present) if present else None


def _text(value: Spread | None, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
    if value is None:
        return "--"
    low, median, high = (f"{number * scale:.{digits}f}" for number in (value.low, value.median, value.high))
    return f"{median}{unit} ({low}–{high})"


def targets(run: Run) -> list[Target]:
    """The gateway's targets at 200 %, and the figures of this run."""
    points, calm = run.at(200), run.at(80)
    if not points:
        return [Target("at 200 % of capacity", "not measured in this run", None)]
    goodput = Spread.of([point.goodput for point in points])
    high = Spread.of([point.high_in_time for point in points])
    found = [
        Target("at 200 %: goodput at least 85 % of capacity", _text(goodput, 100, " %", 1), goodput.median >= 0.85)
    ]
    claim = "at 200 %: high priority in time as at 80 %, within one point"
    measured, met = f"{_text(high, 100, ' %')}", None
    if calm:
        before = Spread.of([point.high_in_time for point in calm])
        measured, met = f"{measured}; at 80 %: {_text(before, 100, ' %')}", high.median >= before.median - 0.01
    found.append(Target(claim, measured, met))
    refusal = _spread([point.gateway_refusal_p50_ms for point in points])
    claim = "at 200 %: the gateway's refusals under 1 ms at the median"
    found.append(Target(claim, _text(refusal, 1, " ms"), refusal.median < 1 if refusal else None))
    return found


def print_report(run: Run) -> None:
    """One line per load, then the promises."""
    for before, after in run.capacity:
        print(f"\ncapacity, closed loop: {before:,.0f}/s before, {after:,.0f}/s after", end="")
    print("\n\nmedian over rounds (lowest–highest); in time: of what was offered; refusal: the gateway's, since sent")
    widths = "{:>6}{:>22}{:>24}{:>24}{:>10}{:>22}{:>10}{:>10}{:>11}"
    heads = ("load", "goodput %", "high in time %", "low in time %", "refused", "refusal p50 ms", "gateway", "workers")
    print(widths.format(*heads, "generator"))
    for percent in dict.fromkeys(point.percent for point in run.points):
        points = run.at(percent)
        refused = sum(point.everybody.refused for point in points) / sum(point.everybody.offered for point in points)
        print(
            widths.format(
                f"{percent:g}%",
                _text(_spread([point.goodput for point in points]), 100, "", 1),
                _text(_spread([point.high_in_time for point in points]), 100),
                _text(_spread([point.low.in_time / point.low.offered for point in points]), 100),
                f"{refused:.0%}",
                _text(_spread([point.gateway_refusal_p50_ms for point in points])),
                f"{np.median([point.gateway_share for point in points]):.0%}",
                f"{np.median([point.workers_share for point in points]):.0%}",
                f"{np.median([point.everybody.generator_cpu_share for point in points]):.0%}",
            )
        )
        failed = sum(point.everybody.failed for point in points)
        dropped = sum(point.everybody.dropped for point in points)
        if failed or dropped:
            print(f"{'':6}{dropped} admitted and dropped later, {failed} failed")
        reasons = Counter[str]()
        for point in points:
            reasons.update(point.reasons)
        for reason, count in reasons.most_common(5):
            print(f"{'':6}{count:8} × {reason}")
    print("\nTargets")
    for target in targets(run):
        verdict = {True: "MET   ", False: "MISSED", None: "  --  "}[target.met]
        print(f"  {verdict}  {target.claim}: {target.measured}")


def write_json(run: Run, path: Path) -> None:
    """Every point, and the machine."""
    points = [asdict(point) for point in run.points]
    for point in points:
        for name in ("everybody", HIGH, LOW):
            point[name].pop("late_intervals")
    document = {
        "machine": describe(),
        "settings": run.settings,
        "capacity_before_and_after": run.capacity,
        "targets": [asdict(target) for target in targets(run)],
        "points": points,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))
