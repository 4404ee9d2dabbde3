"""Worlds for tests of rollouts: a few workers and gateways, described in a line or two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import Failure, Loaded, ObservedState, ObservedWorker
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.state.rollout_records import AcknowledgementRecord, Change, RolloutRecord

POOL = "cpu"


def worker(
    name: str,
    models: Mapping[str, Mapping[str, str]] | None,
    *,
    memory: int = 0,
    failures: Mapping[str, Failure] | None = None,
    pool: str = POOL,
) -> ObservedWorker:
    """``models``: version → digest of what is ready, by model; None: it has not answered yet."""
    record = WorkerRecord(name, "127.0.0.1", 1, 1, pool=pool, memory=memory)
    loaded = None
    if models is not None:
        loaded = {
            model: {version: Loaded("READY", digest) for version, digest in versions.items()}
            for model, versions in models.items()
        }
    return ObservedWorker(record, loaded, failures or {})


def assignment(version: str = "1", **fields: Any) -> Assignment:
    return Assignment(version, **{"pools": (POOL,), "epoch": 1, **fields})


def observed(*workers: ObservedWorker, gateways: tuple[str, ...] = ("a", "b"), **fields: Any) -> ObservedState:
    """One model, version 1 committed in epoch 1; every gateway has seen it."""
    given: dict[str, Any] = {
        "now": 100.0,
        "epoch": EpochRecord(1, {"m": assignment()}),
        "workers": {one.record.name: one for one in workers},
        "gateways": {name: GatewayRecord(name, "127.0.0.1", 1, epoch=1) for name in gateways},
        "known_gateways": {name: f"{name}-first" for name in gateways},
    }
    return ObservedState(**{**given, **fields})


def rollout(version: str = "2", **fields: Any) -> RolloutRecord:
    change = Change(version, "1", pools=(POOL,))
    return RolloutRecord("r1", **{"changes": {"m": change}, "since": {"pending": 100.0}, **fields})


def acknowledgements_of(phase: str, *gateways: str, incarnation: str = "first") -> dict[str, AcknowledgementRecord]:
    return {name: AcknowledgementRecord(phase, f"{name}-{incarnation}") for name in gateways}


def settle(record: RolloutRecord, seen: ObservedState, limit: int = 20) -> RolloutRecord:
    """Steps until nothing more is decided; the observed state does not change meanwhile."""
    for _ in range(limit):
        after = advance(record, replace(seen, rollouts=(record,))).record
        if after == record:
            return record
        record = after
    raise AssertionError(f"does not settle: {record}")


def with_state(record: RolloutRecord, state: str, **fields: Any) -> RolloutRecord:
    return msgspec.structs.replace(record, state=state, since={**record.since, state: 100.0}, **fields)
