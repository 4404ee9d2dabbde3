"""What is to be done about a rollout now. Everything that is written is written in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from isochrone.control.state.records import EpochRecord, RolloutRecord, SwitchRecord


@dataclass(frozen=True, slots=True)
class Decision:
    """The record as it should be from now on, and what goes with it."""

    record: RolloutRecord
    #: Written with it: the commit point.
    commit: EpochRecord | None = None
    #: Written with it, or deleted with it.
    switch: SwitchRecord | None = None
    ends_switch: bool = False
    #: Work that should be under way: comparing outputs, watching a canary step.
    compares: bool = False
    observes: bool = False
    #: For the log of events; "": nothing worth telling.
    event: str = ""


def enter(record: RolloutRecord, state: str, now: float, **fields: object) -> RolloutRecord:
    """The record in another state."""
    return msgspec.structs.replace(record, state=state, since={**record.since, state: now}, **fields)
