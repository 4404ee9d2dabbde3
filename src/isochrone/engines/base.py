"""The interface of an engine, which runs the processes of a fleet.

An engine keeps each started process running, and restarts one that dies, until it is asked to stop it. It knows nothing
of the store and decides nothing about the fleet: ``supervision`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.records import LOCAL


@dataclass(frozen=True, slots=True)
class Running:
    """One process that an engine keeps running."""

    #: 0 while it waits for its restart.
    pid: int
    spec: ProcessSpec
    #: When its present process was started, on the monotonic clock, in seconds.
    since: float
    restarts: int
    #: It was asked to stop, and has not ended yet.
    stopping: bool = False
    #: Address of its machine; "": this machine.
    host: str = ""
    #: Whether the engine gets answers from its machine. If not, the process may run all the same.
    reachable: bool = True
    #: Why it has no machine yet; "": it has one.
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one process."""

    spec: ProcessSpec
    pid: int
    #: As in ``subprocess``: negative for the signal that ended it.
    status: int
    #: Seconds until it is restarted; None: it was asked to stop.
    again_in: float | None
    #: How it ended, if that says more than the status.
    reason: str = ""

    @property
    def how(self) -> str:
        if self.reason:
            return self.reason
        return f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"


class Engine(ABC):
    """One object per supervisor; all methods are called from its event loop."""

    #: As in ``isochrone up --engine`` and in the fleet record.
    name: ClassVar[str] = LOCAL
    #: Its processes go on without a supervisor, and the next one adopts them.
    adoptable: ClassVar[bool] = False

    def __init__(self) -> None:
        self._listeners: list[Callable[[Exit], None]] = []

    def on_exit(self, listener: Callable[[Exit], None]) -> None:
        """Call ``listener`` whenever a process has ended, whatever the cause."""
        self._listeners.append(listener)

    def _notify(self, ended: Exit) -> None:
        for listener in self._listeners:
            listener(ended)

    async def open(self) -> None:
        """Adopt the processes that already run. By default there are none."""
        return

    @abstractmethod
    async def start(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running. Raise ``ValueError`` if there is one of that name."""

    @abstractmethod
    async def stop(self, name: str, grace: float) -> None:
        """Ask a process to end, and kill it after ``grace`` seconds. Return when it has ended.

        Harmless if there is no process of that name.
        """

    @abstractmethod
    def running(self) -> dict[str, Running]: ...

    @abstractmethod
    def last_lines(self, name: str, count: int) -> Sequence[str]:
        """The last lines of a process's log, which may say why it died."""

    @abstractmethod
    def log_place(self, name: str) -> str:
        """Where a process's log is."""

    @abstractmethod
    def may_run(self, name: str, pid: int) -> bool:
        """Whether the process of that name and pid, which an earlier supervisor started, may still run."""

    async def replace(self, name: str) -> None:
        """Start a process again on another machine: its own is lost. Only engines that choose machines can."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Release the engine's own resources. All processes have been stopped before."""
