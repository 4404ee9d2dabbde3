"""A controller's API on a real port, in a thread of this process; the test plays the leader.

Commands are run against it as a person would. ``write`` puts records into the store, as the leading controller does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from isochrone.control.api.application import create_app
from isochrone.control.api.serving import serve_api
from isochrone.control.state.codec import decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.store.base import Put, Store
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

KEYS = Keys("plant")
_LIMIT = 60.0
_Result = TypeVar("_Result")


class ControlThread:
    """The API while it runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="control api")
        self._store: Store | None = None
        self._mirror: Mirror | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        self.call(self._start())

    def stop(self) -> None:
        self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT)

    def write(self, key: str, record: msgspec.Struct | bytes) -> None:
        self.call(self._write(key, record if isinstance(record, bytes) else encode(record)))

    def rollout_when(self, identity: str, condition: str) -> RolloutRecord:
        """The rollout, once a field of it says something."""
        return self.call(self._rollout_when(identity, condition))

    def wait_applied(self) -> None:
        """Until a fleet.yaml is applied."""
        self.call(self._applied())

    async def _start(self) -> None:
        self._store = open_store(f"sqlite:{self.directory / 'fleet.db'}")
        self._mirror = Mirror(self._store, KEYS.prefix)
        await self._mirror.start()
        listening: asyncio.Future[int] = self._loop.create_future()
        app = create_app(self._store, self._mirror, KEYS)
        self._serving = asyncio.ensure_future(serve_api(app, "127.0.0.1", 0, listening.set_result))
        self.port = await listening

    async def _stop(self) -> None:
        assert self._serving is not None
        assert self._mirror is not None
        assert self._store is not None
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self._mirror.stop()
        await self._store.close()

    async def _write(self, key: str, value: bytes) -> None:
        assert self._store is not None
        assert self._mirror is not None
        outcome = await self._store.transact((), (Put(key, value),))
        await self._mirror.catch_up(outcome.revision)

    async def _applied(self) -> None:
        assert self._mirror is not None
        while KEYS.fleet not in self._mirror.entries:
            await self._mirror.changed(self._mirror.revision, _LIMIT)

    async def _rollout_when(self, identity: str, condition: str) -> RolloutRecord:
        assert self._mirror is not None
        while True:
            seen = self._mirror.revision
            entry = self._mirror.entries.get(KEYS.rollout(identity))
            if entry is not None and getattr(decode(entry.value, RolloutRecord), condition):
                return decode(entry.value, RolloutRecord)
            await self._mirror.changed(seen, _LIMIT)


@contextlib.contextmanager
def control_thread(directory: Path) -> Iterator[ControlThread]:
    for model in ("detector", "tracker"):
        for version in "123456":
            (directory / "models" / model / version).mkdir(parents=True)
    control = ControlThread(directory)
    control.start()
    try:
        yield control
    finally:
        control.stop()
