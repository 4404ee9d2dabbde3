"""Plays the control plane: writes workers, epochs and other records of a fleet into its store."""

import hashlib
import time
from collections.abc import Sequence
from functools import lru_cache

from isochrone.control.state.codec import encode
from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord
from isochrone.store.base import Delete, Put
from isochrone.store.opening import open_store


def model_names(count: int) -> list[str]:
    return [f"model-{number}" for number in range(count)]


@lru_cache(None)
def digest(model: str, version: str) -> str:
    return hashlib.sha256(f"{model} {version}".encode()).hexdigest()


class FleetRecords:
    """The records of one fleet."""

    def __init__(self, url: str, models: int, ports: Sequence[int]) -> None:
        self._store = open_store(url)
        self._keys = Keys("bench")
        self._ports = ports
        self._epoch = 0
        self._events = 0
        self._assignments = {name: Assignment("1", digest(name, "1"), epoch=1) for name in model_names(models)}

    async def register(self, number: int, incarnation: str) -> None:
        """A worker registers, or registers again."""
        port = self._ports[number]
        record = WorkerRecord(
            f"worker-{number}", "127.0.0.1", port, port, pool="all", incarnation=incarnation, pid=number + 1
        )
        await self._store.transact((), (Put(self._keys.worker(record.name), encode(record)),), durable=False)

    async def remove(self, number: int) -> None:
        """A worker's lease ends."""
        await self._store.transact((), (Delete(self._keys.worker(f"worker-{number}")),), durable=False)

    async def commit(self, version_of: dict[str, str]) -> None:
        """Commit other versions of some models."""
        self._epoch += 1
        for name, version in version_of.items():
            before = self._assignments[name]
            self._assignments[name] = Assignment(
                version, digest(name, version), before.version, before.digest, epoch=self._epoch
            )
        record = EpochRecord(self._epoch, dict(self._assignments), at=time.time())
        await self._store.transact((), (Put(self._keys.epoch, encode(record)),), durable=False)

    async def note(self) -> None:
        """A record that no gateway needs: progress of a rollout, an event."""
        self._events += 1
        record = EventRecord(time.time(), "bench", "progress", f"step {self._events}", "")
        await self._store.transact((), (event(self._keys, record, f"{self._events:08x}"),), durable=False)

    async def close(self) -> None:
        await self._store.close()
