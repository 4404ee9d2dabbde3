"""Runs the processes of a fleet as subprocesses of this machine.

Each runs ``isochrone …`` in its own session, so that Ctrl-C on a terminal reaches only the supervisor, which stops the
processes in order. None outlives the supervisor (``parent_death``). Each writes a log file (``log_files``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.reading.local_ports import SUPERVISOR_VARIABLE
from isochrone.engines.base import Engine, Exit, Running
from isochrone.engines.local.backoff import Backoff
from isochrone.engines.local.log_files import LogFiles
from isochrone.engines.local.memory_kills import MemoryKills
from isochrone.engines.local.parent_death import with_parent_death_signal

#: Seconds between two looks at the sizes of the logs and at the kernel's memory kills.
_LOOK_SECONDS = 5.0
#: Seconds to wait for a process after SIGKILL; only one stuck in the kernel takes longer.
_KILLED_SECONDS = 5.0

COMMAND = (sys.executable, "-m", "isochrone")


class _Kept:
    """One process that runs until it is asked to stop."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.backoff = Backoff()
        self.process: asyncio.subprocess.Process | None = None
        self.since = monotonic()
        self.restarts = 0
        self.stop_asked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class LocalEngine(Engine):
    """``command``: the words before each process's arguments. ``environment``: further variables of every process.

    ``nested``: another engine placed this one on its machine. Its processes stay in its process group, with which that
    engine ends them, and they do not count as processes of a supervisor of this machine.
    """

    def __init__(
        self,
        logs: LogFiles,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        *,
        nested: bool = False,
        memory_kills: MemoryKills | None = None,
    ) -> None:
        super().__init__()
        self._memory_kills = memory_kills or MemoryKills()
        self.logs = logs
        self._command = tuple(command)
        self._environment = {**os.environ, **(environment or {})}
        if not nested:
            self._environment[SUPERVISOR_VARIABLE] = str(os.getpid())
        self._own_sessions = not nested
        self._kept: dict[str, _Kept] = {}
        self._bounding: asyncio.Task[None] | None = None

    async def start(self, spec: ProcessSpec) -> None:
        if spec.name in self._kept:
            raise ValueError(f"{spec.name} runs already")
        if self._bounding is None:
            self._bounding = asyncio.create_task(self._look())
        kept = self._kept[spec.name] = _Kept(spec)
        try:
            self.logs.rotate(spec.name)
        except OSError:
            pass  # a full disk: the process is more important than its log
        try:
            kept.process = await self._spawn(spec)
        except BaseException:
            del self._kept[spec.name]
            raise
        kept.since = monotonic()
        kept.task = asyncio.create_task(self._keep(kept))

    async def stop(self, name: str, grace: float) -> None:
        kept = self._kept.get(name)
        if kept is None or kept.task is None:
            return
        kept.stop_asked.set()
        task = kept.task
        _signal(kept.process, signal.SIGTERM)
        done, _ = await asyncio.wait((task,), timeout=grace)
        if not done:
            _signal(kept.process, signal.SIGKILL)
            await asyncio.wait((task,), timeout=_KILLED_SECONDS)

    def running(self) -> dict[str, Running]:
        return {
            name: Running(
                kept.process.pid if kept.process is not None else 0,
                kept.spec,
                kept.since,
                kept.restarts,
                kept.stop_asked.is_set(),
            )
            for name, kept in self._kept.items()
        }

    def last_lines(self, name: str, count: int) -> Sequence[str]:
        return self.logs.last_lines(name, count)

    def log_place(self, name: str) -> str:
        return str(self.logs.path(name))

    def may_run(self, name: str, pid: int) -> bool:
        return pid > 0 and Path(f"/proc/{pid}").exists()

    async def close(self) -> None:
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        if self._bounding is not None:
            tasks.append(self._bounding)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, kept: _Kept) -> None:
        """Restart the process whenever it dies, until it is asked to stop."""
        name = kept.spec.name
        while True:
            if kept.process is not None:
                pid, status = kept.process.pid, await kept.process.wait()
                kept.process = None
                pause = None if kept.stop_asked.is_set() else kept.backoff.pause(monotonic() - kept.since)
            else:
                pid, status, pause = 0, 127, kept.backoff.pause(0.0)  # it could not be started
            if pause is None:
                del self._kept[name]
            self._notify(Exit(kept.spec, pid, status, pause, self._reason(status)))
            if pause is None:
                return
            try:
                async with asyncio.timeout(pause):
                    await kept.stop_asked.wait()
            except TimeoutError:
                pass
            if kept.stop_asked.is_set():
                del self._kept[name]
                return
            kept.restarts += 1
            try:
                kept.process = await self._spawn(kept.spec)
            except OSError:
                continue  # out of memory or processes: retry after the next pause
            kept.since = monotonic()
            if kept.stop_asked.is_set():
                _signal(kept.process, signal.SIGTERM)  # the stop was requested during the start

    async def _spawn(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        try:
            log = self.logs.open(spec.name)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return await asyncio.create_subprocess_exec(
                *with_parent_death_signal((*self._command, *spec.arguments)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=self._own_sessions,
                env=self._environment,
            )
        finally:
            os.close(log)

    def _reason(self, status: int) -> str:
        """How a process ended, if that says more than its status."""
        if status == -signal.SIGKILL and self._memory_kills.is_recent:
            return "was ended by signal 9 when the kernel ran out of memory"
        return ""

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._memory_kills.look()
            for name in list(self._kept):
                try:
                    await asyncio.to_thread(self.logs.bound, name)
                except OSError:
                    pass  # a full disk: the next check may find room


def _signal(process: asyncio.subprocess.Process | None, number: signal.Signals) -> None:
    if process is None:
        return
    try:
        process.send_signal(number)
    except ProcessLookupError:
        pass  # it has ended already
