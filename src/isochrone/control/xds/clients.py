"""How far the clients of one server have come: the epoch that all of them route by. Pure.

The leader keeps the old version of a rollout until then. Clients have a limited time for each epoch, from its commit
on: neither a client that does not follow nor one that connects again and again may hold the versions of a fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isochrone.control.xds.ads import AdsClient

#: Seconds for all clients to take over an epoch.
PATIENCE = 10.0


@dataclass(slots=True, eq=False)
class Client:
    """One stream."""

    #: Its address, until it says its name.
    name: str
    is_introduced: bool = False
    protocol: AdsClient = field(default_factory=AdsClient)


class Clients:
    """The streams that are open now."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self.open: set[Client] = set()
        #: The committed epoch, and since when.
        self._committed = 0
        self._since = 0.0
        #: Clients that were too late for it.
        self._late: set[Client] = set()

    def commit(self, epoch: int, now: float) -> None:
        if epoch != self._committed:
            self._committed, self._since = epoch, now
            self._late.clear()

    def epoch(self, now: float) -> int:
        """The epoch that all clients have reached, or would have."""
        if now - self._since >= self._patience:
            return self._committed
        return min([self._committed, *(client.protocol.epoch for client in self.open)])

    def newly_late(self, now: float) -> list[Client]:
        """Clients that nothing waits for any longer, each once per epoch."""
        if now - self._since < self._patience:
            return []
        found = [client for client in self.open - self._late if client.protocol.epoch != self._committed]
        self._late = {client for client in self._late if client in self.open}.union(found)
        return found
