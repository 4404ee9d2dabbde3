"""What an engine promises, wherever it runs the processes of a fleet.

An engine keeps each process it was told to start running, and starts one that dies again, until it is told to stop it.
It knows nothing of the store and decides nothing about the fleet: ``convergence`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from isochrone.control.fleet.processes import ProcessSpec


@dataclass(frozen=True, slots=True)
class Running:
    """One process that an engine keeps."""

    #: 0 while it waits to be started again.
    pid: int
    spec: ProcessSpec
    #: When its present process was started, on the monotonic clock, in seconds.
    since: float
    #: How often it was started again.
    restarts: int
    #: It has been told to stop, and has not ended yet.
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one process: it is dead for certain."""

    spec: ProcessSpec
    pid: int
    #: As ``subprocess`` counts: negative for the signal that ended it.
    status: int
    #: Seconds until it is started again; None: it was told to stop.
    again_in: float | None

    @property
    def how(self) -> str:
        return f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"


class Engine(ABC):
    """Runs processes. One object per supervisor; all methods are called from its event loop."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Exit], None]] = []

    def on_exit(self, listener: Callable[[Exit], None]) -> None:
        """``listener`` is called at once whenever a process has ended, whatever the cause."""
        self._listeners.append(listener)

    def _notify(self, ended: Exit) -> None:
        for listener in self._listeners:
            listener(ended)

    @abstractmethod
    async def start(self, spec: ProcessSpec) -> None:
        """Starts a process and keeps it running. Raises ``ValueError`` if one of that name is kept already."""

    @abstractmethod
    async def stop(self, name: str, grace: float) -> None:
        """Asks a process to end, waits, and ends it by force after ``grace`` seconds. It has ended when this returns.

        Harmless if no process of that name is kept.
        """

    @abstractmethod
    def running(self) -> dict[str, Running]: ...

    @abstractmethod
    async def close(self) -> None:
        """Lets go of what the engine itself holds. All processes have been stopped before."""
