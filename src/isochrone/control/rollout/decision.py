"""The decision about one rollout: its next record and what is written with it, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import RolloutRecord, SwitchRecord


@dataclass(frozen=True, slots=True)
class Decision:
    """The next record of a rollout, and what goes with it."""

    record: RolloutRecord
    #: Written with it: the commit point.
    commit: EpochRecord | None = None
    #: Written with it, or deleted with it.
    switch: SwitchRecord | None = None
    ends_switch: bool = False
    #: Evaluation that should be running: the comparison of outputs, the observation of a canary step.
    compares: bool = False
    observes: bool = False
    #: For the log of events; "": no event.
    event: str = ""


def enter(record: RolloutRecord, state: str, now: float, **fields: object) -> RolloutRecord:
    """The record in another state."""
    return msgspec.structs.replace(record, state=state, since={**record.since, state: now}, **fields)
