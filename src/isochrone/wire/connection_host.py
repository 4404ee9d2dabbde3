"""The interface of a listener for the connections that it accepted."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import MemoryBudget
from isochrone.wire.exchange import Application, Head, Headers
from isochrone.wire.turn import Turn


class ConnectionHost(Protocol):
    """State and services of a listener, shared by its connections."""

    application: Application
    limits: WireLimits
    budget: MemoryBudget
    loop: asyncio.AbstractEventLoop
    turn: Turn
    #: Seconds since start; connections stamp their activity with it.
    tick: int

    def forget(self, connection: Any) -> None:
        """Remove a connection that is closed."""

    def error_body(self, message: str, status: int, head: Head | None) -> tuple[bytes, Headers]:
        """The body and headers of an error that the wire itself answers with; ``head``: None if there is none yet."""
        ...

    def no_memory(self) -> str:
        """The error message for a request whose connection holds its share of memory."""
        ...
