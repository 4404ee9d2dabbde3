"""The interface of an engine, which runs the processes of a fleet.

An engine keeps each started process running, and restarts one that dies, until it is asked to stop it. It knows nothing
of the store and decides nothing about the fleet: ``supervision`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from isochrone.control.fleet.processes import ProcessSpec


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


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one process."""

    spec: ProcessSpec
    pid: int
    #: As in ``subprocess``: negative for the signal that ended it.
    status: int
    #: Seconds until it is restarted; None: it was asked to stop.
    again_in: float | None

    @property
    def how(self) -> str:
        return f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"


class Engine(ABC):
    """One object per supervisor; all methods are called from its event loop."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Exit], None]] = []

    def on_exit(self, listener: Callable[[Exit], None]) -> None:
        """Call ``listener`` whenever a process has ended, whatever the cause."""
        self._listeners.append(listener)

    def _notify(self, ended: Exit) -> None:
        for listener in self._listeners:
            listener(ended)

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
    async def close(self) -> None:
        """Release the engine's own resources. All processes have been stopped before."""
