"""A fleet's records without a store, for tests of what is decided on them: each key has a revision of its own.

``apply`` does what a store's transaction would; nothing here decides anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from isochrone.control.fleet.reading.file import FleetFile
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.requests.decisions import Decision, RequestContext
from isochrone.control.state.codec import decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Entry, Put

KEYS = Keys("plant")
CONTEXT = RequestContext("ada@desk", 1000.0, "a1")
FLEET = """
name: plant
pools:
  cpu: {workers: 2, min: 1, max: 4}
  outside: {addresses: ["10.0.0.7:8000"], kind: triton}
models:
  detector:
    version: 1
    pools: [cpu]
    memory: 1MiB
    rollout: {cutover: strict, canary: {steps: [10%, 50%], min_samples: 20}, prepare_seconds: 30}
  tracker: {version: 1, pools: [cpu]}
  pipeline: {version: 1, pools: [cpu], stages: [detector, tracker]}
  embedder: {version: 1, pools: [cpu], with: [reranker]}
  reranker: {version: 1, pools: [cpu]}
"""


class Records:
    """What a store would hold."""

    def __init__(self, text: str | None = FLEET, versions: dict[str, Assignment] | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        if text is not None:
            spec = file_of(text).fleet.model_dump(mode="json")
            self.put(KEYS.fleet, FleetRecord(1, text, spec, "/fleet", "bob@desk", 900.0))
        if versions is not None:
            self.put(KEYS.epoch, EpochRecord(7, versions))

    @property
    def view(self) -> View:
        return View(KEYS, self.entries)

    def put(self, key: str, record: msgspec.Struct | bytes, lease: int = 0) -> None:
        self.revision += 1
        value = record if isinstance(record, bytes) else encode(record)
        self.entries[key] = Entry(key, value, self.revision, lease)

    def rollout(self, identity: str, state: str, changes: dict[str, Any], **fields: Any) -> RolloutRecord:
        record = RolloutRecord(identity, changes, state, **fields)
        self.put(KEYS.rollout(identity), record)
        return record

    def apply(self, decision: Decision[Any]) -> bool:
        """As a store would: all of it, if every condition holds."""
        for compare in decision.compares:
            entry = self.entries.get(compare.key)
            if (entry.revision if entry is not None else 0) != compare.revision:
                return False
        keys = [operation.key for operation in decision.operations]
        assert len(keys) == len(set(keys)), "no key may be operated on twice"
        self.revision += 1
        for operation in decision.operations:
            match operation:
                case Put(key, value, lease):
                    self.entries[key] = Entry(key, value, self.revision, lease)
                case Delete(key):
                    self.entries.pop(key, None)
        return True

    def last_event(self) -> tuple[str, str, str, str]:
        """(who, what, about, detail)"""
        *_, (_, record) = self.view.events()
        return record.who, record.what, record.about, record.detail


def file_of(text: str, directory: str = "/fleet") -> FleetFile:
    """A file whose models all mean the versions it names."""
    fleet = parse_fleet(text, "fleet.yaml", Path(directory))
    versions = {name: model.version for name, model in fleet.models.items()}
    return FleetFile(fleet, text, directory, versions, {name: model.stages for name, model in fleet.models.items()})


def served(**versions: str) -> dict[str, Assignment]:
    """Each model at a version, without one before."""
    return {name: Assignment(version, pools=("cpu",)) for name, version in versions.items()}


def read_rollout(records: Records, identity: str) -> RolloutRecord:
    return decode(records.entries[KEYS.rollout(identity)].value, RolloutRecord)


def renamed(text: str) -> str:
    """The same file with pool cpu called metal."""
    return text.replace("  cpu: {", "  metal: {").replace("pools: [cpu]", "pools: [metal]")


ALL = served(detector="1", tracker="1", pipeline="1", embedder="1", reranker="1")
