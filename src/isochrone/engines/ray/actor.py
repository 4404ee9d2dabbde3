"""The Ray actor of one process: runs ``isochrone …`` as its child on the node that Ray chose.

The actor restarts its process as the engine ``local`` does, with the same logs, and reports to whichever supervisor
asks. The process ends with its actor. An actor whose raylet has died, or whose name another actor has, stops its
process: the fleet counts on exactly one process of each name. An actor whose machine has less memory than Ray counts on
does not start its process, and says so. Must never decide which process to run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from isochrone.control.fleet.derived.processes import NODE_ADDRESS, ProcessSpec
from isochrone.control.state.needs import Needs
from isochrone.engines.base import Exit
from isochrone.engines.local.engine import LocalEngine
from isochrone.engines.local.log_files import LogFiles
from isochrone.engines.ray.memory import available_memory, memory_refusal
from isochrone.engines.ray.reports import ExitReport, Report, decode_spec, encode_report

#: Seconds that a report waits for news, and between two looks.
HOLD_SECONDS = 1.0
_LOOK_SECONDS = 0.05
#: Seconds between two checks of the raylet, and of the actor's name.
_RAYLET_SECONDS, _NAME_SECONDS = 0.25, 5.0
#: Seconds between two looks at the memory of a machine that has too little.
_MEMORY_SECONDS = 2.0
#: Seconds for a process to finish its requests when its node is lost.
_GRACE = 35.0
_LINES, _EXITS = 20, 16

_Result = TypeVar("_Result")


class HostedProcess:
    """``environment``: what the process needs and its command line must not show."""

    def __init__(self, fleet: str, encoded: bytes, environment: Mapping[str, str]) -> None:
        import ray

        context = ray.get_runtime_context()
        self._encoded = encoded
        self._name = context.get_actor_name() or ""
        self._identity = context.get_actor_id()
        self._node = context.get_node_id()
        self._address = str(ray.util.get_node_ip_address())
        self._instance = secrets.token_hex(8)
        self._raylet = os.getppid()
        self._version = 0
        #: Why the process is not started; "": it is.
        self._refusal = ""
        self._is_stopping = False
        self._exits: deque[ExitReport] = deque(maxlen=_EXITS)
        # Beside Ray's own logs, where its dashboard shows them.
        session = Path(context.get_temp_dir()) / context.get_session_name()
        self._logs = LogFiles(session / "logs" / "isochrone" / fleet / "logs")
        self._spec = placed(decode_spec(encoded), self._address)
        self._loop = asyncio.new_event_loop()
        # The kernel ends the child with the thread that started it: this one lasts as long as the actor.
        threading.Thread(target=self._loop.run_forever, name="process", daemon=True).start()
        self._wait(self._start(environment))

    def report(self, instance: str, seen: int) -> bytes:
        """The state, as soon as it is newer than version ``seen``, and after a second in any case.

        Versions of another ``instance`` of the actor do not count.
        """
        return self._wait(self._report(seen if instance == self._instance else -1))

    def spec(self) -> bytes:
        """The spec that it was started with."""
        return self._encoded

    def stop(self, grace: float) -> bool:
        """Return when the process has ended. False: it has not, although it was killed."""
        self._is_stopping = True
        self._wait(self._engine.stop(self._spec.name, grace))
        return self._spec.name not in self._engine.running()

    def last_lines(self, count: int) -> list[str]:
        return list(self._engine.last_lines(self._spec.name, count))

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, environment: Mapping[str, str]) -> None:
        self._engine = LocalEngine(self._logs, environment=environment, nested=True)
        self._engine.on_exit(self._ended)
        self._refusal = self._look_at_memory()
        if not self._refusal:
            await self._engine.start(self._spec)
        guards = (self._guard_raylet(), self._guard_name(), self._start_with_memory())
        self._guarding = [asyncio.create_task(each) for each in guards]

    def _look_at_memory(self) -> str:
        return memory_refusal(self._spec.needs or Needs(), available_memory())

    async def _start_with_memory(self) -> None:
        """Start a process that was refused, as soon as the machine has the memory."""
        while self._refusal and not self._is_stopping:
            await asyncio.sleep(_MEMORY_SECONDS)
            self._refusal = self._look_at_memory()
            if not self._refusal and not self._is_stopping:
                await self._engine.start(self._spec)

    async def _report(self, seen: int) -> bytes:
        for _ in range(round(HOLD_SECONDS / _LOOK_SECONDS)):
            if self._state_version() > seen:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        running = self._engine.running().get(self._spec.name)
        report = Report(
            self._state_version(),
            self._instance,
            self._node,
            self._address,
            pid=running.pid if running is not None else 0,
            age=monotonic() - running.since if running is not None else 0.0,
            restarts=running.restarts if running is not None else 0,
            log=self._engine.log_place(self._spec.name),
            exits=tuple(each for each in self._exits if each.version > seen),
            refusal=self._refusal,
        )
        return encode_report(report)

    def _state_version(self) -> int:
        """Deaths and restarts so far: each of them is news."""
        running = self._engine.running().get(self._spec.name)
        return 2 * self._version + (1 if running is not None and running.pid else 0)

    def _ended(self, ended: Exit) -> None:
        self._version += 1
        lines = tuple(self._engine.last_lines(self._spec.name, _LINES))
        self._exits.append(ExitReport(2 * self._version, ended.pid, ended.status, ended.again_in, lines, ended.reason))

    async def _guard_raylet(self) -> None:
        """Ray counts the node as lost without its raylet, and starts the process elsewhere."""
        while True:
            await asyncio.sleep(_RAYLET_SECONDS)
            if os.getppid() != self._raylet:
                await self._end()

    async def _guard_name(self) -> None:
        while True:
            await asyncio.sleep(_NAME_SECONDS)
            if await asyncio.to_thread(self._is_replaced):
                await self._end()

    def _is_replaced(self) -> bool:
        import ray

        try:
            actor = ray.get_actor(self._name, namespace=ray.get_runtime_context().namespace)
        except Exception:
            return False  # the name is free, or Ray does not answer: Ray ends actors that it has given up
        return bool(actor._actor_id.hex() != self._identity)

    async def _end(self) -> None:
        await self._engine.stop(self._spec.name, _GRACE)
        os._exit(1)


def placed(spec: ProcessSpec, address: str) -> ProcessSpec:
    """The spec with the address of its machine."""
    words = tuple(address if word == NODE_ADDRESS else word for word in spec.arguments)
    return ProcessSpec(spec.name, spec.role, words, spec.pool, spec.needs)
