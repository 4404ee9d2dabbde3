"""Recovery time of each fault, from the driver's observations and the clients' answers. Pure.

A fault is over when the process works again, every gateway has answered a request that started after the fault, and the
rollout it struck has come to an end.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.control.checker import Violation
from bench.control.fault_driver import Course, Struck
from bench.control.history import ERROR, OK, Answer


@dataclass(frozen=True)
class Recovery:
    """One fault; seconds since it struck. None: never, within the run."""

    number: int
    rollout: int
    state: str
    kind: str
    name: str
    lasted: float
    process: float | None
    gateways: float | None
    rollout_over: float | None

    @property
    def whole(self) -> float | None:
        parts = (self.process, self.gateways, self.rollout_over)
        return None if None in parts else max(part for part in parts if part is not None)

    @property
    def after(self) -> float | None:
        """Beyond the fault's own duration."""
        return None if self.whole is None else max(0.0, self.whole - self.lasted)


def recoveries(course: Course, history: Iterable[Answer], gateways: Sequence[str]) -> list[Recovery]:
    """In the order the faults struck."""
    answered = {gateway: _first_ends(history_of) for gateway, history_of in _by_gateway(history, gateways).items()}
    return [_recovery(struck, course, answered) for struck in sorted(course.struck, key=lambda one: one.at_ns)]


def _recovery(struck: Struck, course: Course, answered: Mapping[str, tuple[list[int], list[int]]]) -> Recovery:
    def since(instant: int | None) -> float | None:
        return None if instant is None else max(0.0, (instant - struck.at_ns) / 1e9)

    ends = [_next_end(*times, struck.at_ns) for times in answered.values()]
    asked = course.rollouts[struck.rollout]
    over = since(asked.ended_ns) if asked.identity else 0.0
    return Recovery(
        struck.number,
        struck.rollout,
        struck.state or "not started",
        struck.fault.kind,
        struck.name,
        since(struck.undone_ns) or 0.0,
        since(struck.back_ns),
        None if None in ends else since(max(end for end in ends if end is not None)),
        over,
    )


def _by_gateway(history: Iterable[Answer], gateways: Sequence[str]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {gateway: [] for gateway in gateways}
    for answer in history:
        if answer.outcome == OK and answer.gateway in found:
            found[answer.gateway].append(answer)
    return found


def _first_ends(answers: list[Answer]) -> tuple[list[int], list[int]]:
    """Starts in order, and for each the earliest end of an answer that started then or later."""
    answers.sort(key=lambda one: one.started_ns)
    ends: list[int] = []
    for answer in reversed(answers):
        ends.append(min(answer.ended_ns, ends[-1]) if ends else answer.ended_ns)
    return [answer.started_ns for answer in answers], ends[::-1]


def _next_end(starts: list[int], ends: list[int], instant: int) -> int | None:
    place = bisect_left(starts, instant)
    return ends[place] if place < len(ends) else None


def table(rows: Sequence[Recovery]) -> str:
    """Every fault, as markdown."""
    lines = [
        "| # | rollout | state | fault | process | lasted | back | gateways answer | rollout over | recovered |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = " | ".join(map(_seconds, (row.process, row.gateways, row.rollout_over, row.whole)))
        lines.append(
            f"| {row.number} | {row.rollout} | {row.state} | {row.kind} | {row.name} | {row.lasted:.2f} s | {times} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Recovery]) -> str:
    """By kind and role: seconds beyond the fault's own duration."""
    groups: dict[tuple[str, str], list[Recovery]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.name.rpartition("-")[0] or row.name), []).append(row)
    lines = ["| fault | of | times | median after it | worst after it | never |", "|---|---|---|---|---|---|"]
    for (kind, role), members in sorted(groups.items()):
        after = [row.after for row in members if row.after is not None]
        figures = f"{statistics.median(after):.2f} s | {max(after):.2f} s" if after else "– | –"
        lines.append(f"| {kind} | {role} | {len(members)} | {figures} | {len(members) - len(after)} |")
    return "\n".join(lines)


def reasons(history: Iterable[Answer]) -> Counter[str]:
    """Explicit errors by their first words, numbers and names left out."""
    found: Counter[str] = Counter()
    for answer in history:
        if answer.outcome == ERROR:
            found[" ".join(answer.error.split()[:6])] += 1
    return found


def as_json(rows: Sequence[Recovery], violations: Sequence[Violation], course: Course) -> dict[str, Any]:
    return {
        "faults": [{**asdict(row), "recovered": row.whole} for row in rows],
        "violations": [str(violation) for violation in violations],
        "stuck": course.stuck,
        "refused": course.refused,
        "rollouts": {
            number: {"state": asked.state, "identity": asked.identity, "reason": asked.record.get("reason", "")}
            for number, asked in course.rollouts.items()
        },
    }


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"
