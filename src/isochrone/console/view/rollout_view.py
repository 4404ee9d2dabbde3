"""Rollouts and canaries: how far each is, what its workers do, what it was judged by, and what may be done. Pure.

The actions are those that the API would accept now; the API decides again when one is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from isochrone.control.state.rollout_records import (
    ABORTED,
    ABORTING,
    CANARY,
    COMPARING,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    RolloutRecord,
)

PROMOTE, ABORT, ROLLBACK = "promote", "abort", "rollback"
#: Rollouts that are shown, the newest.
MOST: Final = 30
#: Workers of one rollout that are listed by name.
_MOST_WORKERS: Final = 200
_WAY: Final = (PENDING, PREPARING, COMPARING, CANARY, SWITCHING, DRAINING, DONE)


@dataclass(frozen=True, slots=True)
class Step:
    state: str
    #: "done", "now", "next".
    place: str
    #: When it was entered, in seconds since 1970; 0: not yet.
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    of: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStep:
    name: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class RolloutView:
    identity: str
    kind: str
    state: str
    summary: str
    models: tuple[str, ...]
    cutover: str
    by: str
    at: float
    is_over: bool
    #: Why it was aborted, or the latest progress.
    note: str
    steps: tuple[Step, ...]
    #: How many workers are in each state, and those that are not ready yet or failed.
    workers: dict[str, int]
    waiting: tuple[WorkerStep, ...]
    #: Shares of the canary, and the index of the present one; (): no canary.
    weights: tuple[float, ...]
    step: int
    verdicts: tuple[Verdict, ...]
    #: "promote", "abort".
    actions: tuple[str, ...]


def rollout_views(rollouts: Sequence[RolloutRecord]) -> tuple[RolloutView, ...]:
    """The newest first, open ones before those that are over."""
    shown = [*reversed(rollouts[-MOST:])]
    return tuple(rollout_view(each) for each in sorted(shown, key=lambda each: each.is_over))


def rollout_view(record: RolloutRecord) -> RolloutView:
    counts = Counter(each.state for each in record.workers.values())
    unready = [WorkerStep(name, each.state, each.detail) for name, each in record.workers.items()]
    unready = [each for each in unready if each.state != "ready"]
    is_canary = record.canary is not None
    return RolloutView(
        record.identity,
        record.kind,
        record.state,
        record.summary,
        tuple(record.changes),
        record.cutover,
        record.by,
        record.at,
        record.is_over,
        record.reason or record.abort_asked or record.note,
        _steps(record),
        dict(sorted(counts.items())),
        tuple(unready[:_MOST_WORKERS]) if not record.is_over else (),
        record.canary.weights if record.canary is not None and is_canary else (),
        record.step,
        tuple(Verdict(each.of, each.passed, each.reason) for each in record.verdicts),
        actions_of(record),
    )


def actions_of(record: RolloutRecord) -> tuple[str, ...]:
    """What ``control.requests.rollouts`` would accept for it now."""
    if record.is_over or record.state in (DRAINING, ABORTING) or record.abort_asked:
        return ()
    if record.state == CANARY and not record.promote_asked:
        return PROMOTE, ABORT
    return (ABORT,)


def _steps(record: RolloutRecord) -> tuple[Step, ...]:
    way = [state for state in _WAY if _passes(record, state)]
    if record.state in (ABORTING, ABORTED):
        # What it had entered, and its end.
        way = [state for state in way if state in record.since] + [ABORTING, ABORTED]
    now = way.index(record.state) if record.state in way else len(way)
    return tuple(
        Step(
            state,
            "done" if index < now or (index == now and record.is_over) else "now" if index == now else "next",
            record.since.get(state, 0.0),
        )
        for index, state in enumerate(way)
    )


def _passes(record: RolloutRecord, state: str) -> bool:
    if state == CANARY:
        return record.canary is not None
    if state == COMPARING:
        return record.compare is not None
    return True
