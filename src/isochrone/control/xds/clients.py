"""How far the clients of one server have come: the epoch that all of them route by. Pure.

The leader keeps the old version of a rollout until then. Clients have a limited time for each epoch, from its commit
on: neither a client that does not follow nor one that connects again and again may hold the versions of a fleet. A
client that was late is not waited for again until it has caught up, and a stream that asks for nothing is no client.

Clients are grouped by epoch, so that no answer needs all of them: a thousand acknowledge a commit at the same time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from isochrone.control.xds.ads import AdsClient

#: Seconds for all clients to take over an epoch.
PATIENCE = 10.0
#: Streams from one address, of those that the server has in all: one host must not lock out the others.
MOST_PER_HOST = 1024


@dataclass(slots=True, eq=False)
class Client:
    """One stream."""

    #: Its address, until it says its name.
    name: str
    is_introduced: bool = False
    protocol: AdsClient = field(default_factory=AdsClient)
    #: The address without the port.
    host: str = ""
    #: Whether its time for the first subscription is over.
    is_overdue: bool = False


class Clients:
    """The streams that are open now."""

    def __init__(self, patience: float = PATIENCE, most_per_host: int = MOST_PER_HOST) -> None:
        self._patience = patience
        self._most_per_host = most_per_host
        self._hosts: Counter[str] = Counter()
        #: The clients that have subscribed, since when, and the epoch of those that are waited for.
        self._subscribed: dict[Client, float] = {}
        self._waited: dict[Client, int] = {}
        self._by_epoch: dict[int, dict[Client, None]] = {}
        #: Clients that were too late for an epoch and have not caught up.
        self._late: set[Client] = set()
        #: The committed epoch, and since when.
        self._committed = 0
        self._since = 0.0

    def __len__(self) -> int:
        """How many clients there are: streams that have subscribed."""
        return len(self._subscribed)

    def enter(self, client: Client) -> bool:
        """A stream begins. Return whether its host may have another one."""
        if self._hosts[client.host] >= self._most_per_host:
            return False
        self._hosts[client.host] += 1
        return True

    def leave(self, client: Client) -> None:
        """A stream that entered has ended."""
        self._hosts[client.host] -= 1
        if not self._hosts[client.host]:
            del self._hosts[client.host]
        self._subscribed.pop(client, None)
        self._late.discard(client)
        self._wait_no_longer(client)

    def moved(self, client: Client, now: float) -> None:
        """The client may have subscribed, or taken over an epoch."""
        if not client.protocol.is_subscribed:
            return
        self._subscribed.setdefault(client, now)
        epoch = client.protocol.epoch
        if client in self._late:
            if epoch < self._committed:
                return
            self._late.discard(client)
        if self._waited.get(client) != epoch:
            self._wait_no_longer(client)
            self._waited[client] = epoch
            self._by_epoch.setdefault(epoch, {})[client] = None

    def _wait_no_longer(self, client: Client) -> None:
        epoch = self._waited.pop(client, None)
        if epoch is not None:
            del self._by_epoch[epoch][client]
            if not self._by_epoch[epoch]:
                del self._by_epoch[epoch]

    def commit(self, epoch: int, now: float) -> None:
        if epoch != self._committed:
            self._committed, self._since = epoch, now

    def epoch(self, now: float) -> int:
        """The epoch that all clients have reached, or would have."""
        if now - self._since >= self._patience:
            return self._committed
        return min([self._committed, *self._by_epoch])

    def newly_late(self, now: float) -> list[Client]:
        """Clients that nothing waits for any longer, each once until it has caught up."""
        if now - self._since < self._patience:
            return []
        behind = [client for epoch, group in self._by_epoch.items() if epoch < self._committed for client in group]
        # One that has just connected has its time, too.
        found = [client for client in behind if now - self._subscribed[client] >= self._patience]
        for client in found:
            self._wait_no_longer(client)
            self._late.add(client)
        return found
