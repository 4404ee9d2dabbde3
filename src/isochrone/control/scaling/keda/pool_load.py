"""The load of a pool, from the reports of its workers and of the gateways. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One reading."""

    #: Requests that each worker has not answered yet; None: it did not say.
    in_flight: Mapping[str, int | None] = field(default_factory=dict)
    #: Requests for models of the pool that each gateway has received since its start; None: it did not say.
    received: Mapping[str, int | None] = field(default_factory=dict)
    #: Requests for models of the pool that wait in gateways until a worker is ready.
    waiting: int = 0

    @property
    def is_known(self) -> bool:
        """A pool without workers has a load: what waits for one."""
        return not self.in_flight or any(count is not None for count in self.in_flight.values())

    def total(self, target: float) -> float:
        """Requests in the pool. A worker that did not say counts as one with its ``target``: its silence is a reason
        neither to add workers nor to remove them."""
        return self.waiting + sum(target if count is None else count for count in self.in_flight.values())


class Activity:
    """Whether a pool is in use: a request is in it, or one was received not long ago, served or not.

    A controller that KEDA has just connected to cannot tell when a gateway received the requests that it counts. While
    the pool has workers, they are taken for old: what is in flight decides. While it has none, they are taken for new:
    a pool that wakes without need sleeps again, a request that arrived between two controllers is not missed.
    """

    def __init__(self) -> None:
        self._received: dict[str, int] = {}
        self._last = float("-inf")

    def take(self, load: PoolLoad, now: float) -> None:
        if load.waiting or any(load.in_flight.values()):
            self._last = now
        for gateway, count in load.received.items():
            if count is None:
                continue
            before = self._received.get(gateway)
            if before is None:
                is_new = bool(count) and not load.in_flight
            else:
                # A gateway that restarted counts from 0 again.
                is_new = count > (before if count >= before else 0)
            if is_new:
                self._last = now
            self._received[gateway] = count

    def wake(self, now: float) -> None:
        """Requests wait for a worker of the pool."""
        self._last = now

    def is_active(self, now: float, idle_seconds: float) -> bool:
        return now - self._last < idle_seconds
