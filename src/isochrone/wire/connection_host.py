"""The interface of a listener as the connections that it accepted see it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.budget import MemoryBudget
from isochrone.wire.exchange import Application, Headers
from isochrone.wire.turn import Turn


class ConnectionHost(Protocol):
    """Shared by the connections of one listener."""

    application: Application
    limits: WireLimits
    budget: MemoryBudget
    loop: asyncio.AbstractEventLoop
    turn: Turn
    #: Seconds since start; connections stamp their activity with it.
    tick: int

    def forget(self, connection: Any) -> None:
        """The connection is gone."""

    def error_body(self, message: str) -> tuple[bytes, Headers]:
        """The body and headers of an error that the wire itself answers with."""
        ...

    def no_memory(self) -> str:
        """The error message for a request whose connection holds its share of memory."""
        ...
