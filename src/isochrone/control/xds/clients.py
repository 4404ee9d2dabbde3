"""How far the clients of one server have come: the epoch that all of them route by. Pure.

The leader keeps the old version of a rollout until then. A client that does not take an epoch over within the patience
counts no longer: one broken client must not hold the versions of a fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isochrone.control.xds.ads import AdsClient

#: Seconds for a client to take over an epoch.
PATIENCE = 10.0


@dataclass(slots=True, eq=False)
class Client:
    """One stream."""

    name: str = ""
    protocol: AdsClient = field(default_factory=AdsClient)
    #: Since when it routes by another epoch than the present one, and by which; None: it does not.
    behind: tuple[float, int] | None = None
    is_reported: bool = False


class Clients:
    """The streams that are open now."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self.open: set[Client] = set()

    def epoch(self, present: int, now: float) -> int:
        """The epoch that all clients have reached, if the server publishes the present one."""
        reached = present
        for client in self.open:
            if self._is_awaited(client, present, now):
                reached = min(reached, client.protocol.epoch)
        return reached

    def late(self, present: int, now: float) -> list[Client]:
        """Clients that are out of patience, each once per epoch."""
        found = []
        for client in self.open:
            is_late = client.protocol.epoch != present and not self._is_awaited(client, present, now)
            if is_late and not client.is_reported:
                found.append(client)
            client.is_reported = is_late
        return found

    def _is_awaited(self, client: Client, present: int, now: float) -> bool:
        epoch = client.protocol.epoch
        if epoch == present:
            client.behind = None
            return False
        if client.behind is None or client.behind[1] != epoch:
            client.behind = now, epoch
        return now - client.behind[0] < self._patience
