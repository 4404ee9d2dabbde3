"""A simulated pool: workers that start, serve, stand by and drain; their capacity, queue and admission.

Requests are a fluid: in each second the pool admits as many as it can answer in that second plus those that may wait
within the SLO; the others are refused. Requests are shared in proportion to the workers' capacities, as a policy that
knows their load does. All algorithms get this pool, with its admission by deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from isochrone.control.autoscaler.capacity import rate_at_slo


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Times are in seconds. The curve is that of a GPU: most of a batch's time does not depend on its size. So requests
    in flight grow evenly with the load, which suits algorithms that scale by them."""

    slo: float = 0.2
    #: A batch takes ``fixed + per_row * rows``.
    fixed: float = 0.030
    per_row: float = 0.0016
    largest_batch: int = 32
    #: From the decision until a worker serves: image, process, weights, warm-up.
    start_up: int = 120
    #: A worker that leaves routing answers what it has, then ends.
    drain: int = 5
    #: Standby workers: with the next second they serve (activation takes milliseconds), and are replaced.
    warm: int = 0
    #: Share of the capacity that the load of the first minute uses, before any decision.
    first_utilisation: float = 0.6
    max_workers: int = 64

    def batch_seconds(self, rows: float, slowness: float = 1.0) -> float:
        return (self.fixed + self.per_row * rows) * slowness


@lru_cache(maxsize=4096)
def capacity(settings: PoolSettings, slowness: float) -> float:
    """Of one worker, within the SLO."""
    times = [settings.batch_seconds(rows, slowness) for rows in range(settings.largest_batch + 1)]
    return rate_at_slo(times, settings.slo)


class Pool:
    """Workers by the second in which each was started; the oldest first."""

    def __init__(self, settings: PoolSettings, leak_seconds: float, first_load: float) -> None:
        self.settings = settings
        self._leak = leak_seconds
        first = ceil(first_load / (settings.first_utilisation * capacity(settings, 1.0)))
        #: The second in which each ready worker began to serve.
        self.ready: list[int] = [0] * first
        #: The second in which each will be ready.
        self.pending: list[int] = []
        self.standby = settings.warm
        #: Standby workers that start: the second in which each will be ready.
        self.standby_pending: list[int] = []
        #: The second in which each ends.
        self.draining: list[int] = []
        #: Capacity of each ready worker, and of all.
        self.capacities: tuple[float, ...] = ()
        self.total = 0.0
        self.slowness = 1.0
        self.measure(0)

    @property
    def workers(self) -> int:
        return len(self.ready) + len(self.pending)

    @property
    def paid(self) -> int:
        """Every worker costs from its start to its end, whatever it does."""
        return self.workers + self.standby + len(self.standby_pending) + len(self.draining)

    def measure(self, now: int) -> None:
        """Sets the capacities of now."""
        if self._leak:
            self.slowness = round(1 + now / self._leak, 3)
        self.capacities = (capacity(self.settings, self.slowness),) * len(self.ready)
        self.total = sum(self.capacities)

    def turn(self, now: int) -> None:
        """What happens by itself: workers become ready, drained ones end."""
        if self.pending and self.pending[0] <= now:
            while self.pending and self.pending[0] <= now:
                self.ready.append(self.pending.pop(0))
            self.measure(now)
        while self.standby_pending and self.standby_pending[0] <= now:
            self.standby_pending.pop(0)
            self.standby += 1
        while self.draining and self.draining[0] <= now:
            self.draining.pop(0)

    def scale(self, now: int, desired: int) -> None:
        """Standby workers first, then new ones; down: those that start first, then the oldest: they are equal."""
        desired = min(max(desired, 0), self.settings.max_workers)
        while self.workers < desired:
            if self.standby:
                self.standby -= 1
                self.ready.append(now)
                self.standby_pending.append(now + self.settings.start_up)
            else:
                self.pending.append(now + self.settings.start_up)
        while self.workers > desired:
            if self.pending:
                self.pending.pop()
            else:
                self.ready.pop(0)
                self.draining.append(now + self.settings.drain)
        self.measure(now)

    def next_event(self) -> float:
        firsts = (each[0] for each in (self.pending, self.standby_pending, self.draining) if each)
        return min(firsts, default=float("inf"))

    def in_flight(self, served: float, queued: float) -> float:
        """Requests that are in the pool at a rate of answers, by Little's law: each waits for half a batch on average,
        then for its own. A worker's batches have the size at which arrivals during one fill the next."""
        workers = len(self.ready)
        if not workers or served <= 0:
            return queued
        settings, rate = self.settings, served / workers
        room = 1 - rate * settings.per_row * self.slowness
        rows = float(settings.largest_batch)
        if room > 0:
            rows = min(rows, max(1.0, rate * settings.fixed * self.slowness / room))
        return served * 1.5 * settings.batch_seconds(rows, self.slowness) + queued

    def full_in_flight(self) -> float:
        """In flight on one worker that is fully used."""
        rows = self.settings.largest_batch
        return 1.5 * rows
