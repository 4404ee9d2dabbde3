"""A bucket of tokens per worker: a request takes as many as it has rows, and the refill follows the worker's queue.

Each bucket is kept as one instant, the one from which on it is worth something, so that the choice is the lowest of
those instants, which shares out tokens in proportion to refill. A large request may leave a debt that the next ones
wait for. Where a worker's queue is shorter than wished its refill grows, where it is longer it shrinks: the bucket
finds the worker's speed. All empty: the least loaded, or a refusal, as ``when_empty`` says.

Sources: the virtual scheduling form of the generic cell rate algorithm (ITU-T I.371, annex A); rates that follow a
queue as in Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from isochrone.errors import QueueFull
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.toolkit.options import number, one_of
from isochrone.gateway.policies.toolkit.scores import ScoreBoard, ScoredPolicy
from isochrone.gateway.replicas import NEWS_NS, Replica

#: A refill at most doubles in this time, and is at most halved four times.
_PERIOD_NS = 100_000_000
_SPACING_NS = _PERIOD_NS // 16
_LONG_AGO = -1e15
_LOWEST_RATE, _HIGHEST_RATE = 1e-9, 1.0


class TokenBucket(ScoredPolicy):
    """``burst_s``: a full bucket holds what is refilled in this time. ``rate``: tokens per second a worker begins with.
    ``queue``: the queue length, in requests, at which the refill stays as it is. ``when_empty``: least_loaded or
    refuse."""

    name = "token_bucket"

    def __init__(
        self,
        random: Random,
        *,
        burst_s: float = 0.1,
        rate: float = 1000,
        queue: float = 2,
        when_empty: str = "least_loaded",
    ) -> None:
        super().__init__(random)
        self._burst_ns = number(self.name, "burst_s", burst_s, 0.001) * 1e9
        self._first_rate = number(self.name, "rate", rate, 1, _HIGHEST_RATE * 1e9) * 1e-9
        self._queue = number(self.name, "queue", queue, 0.5)
        self._refuse = one_of(self.name, "when_empty", when_empty, ("least_loaded", "refuse")) == "refuse"
        #: By slot: tokens per ns, and when that was last looked at.
        self._rates: list[float] = []
        self._looked_at: list[int] = []
        #: By slot: when the bucket is worth more than nothing, in ns.
        self._worth_from = ScoreBoard()
        self._begin = 0
        #: Choices that found every bucket empty.
        self.empty = 0

    def members(self, replicas: Sequence[Replica]) -> None:
        kept = [self._slots.get(replica) for replica in replicas]
        rates, looked_at, worth_from = self._rates, self._looked_at, self._worth_from.values
        self._rates = [self._first_rate if slot is None else rates[slot] for slot in kept]
        self._looked_at = [0 if slot is None else looked_at[slot] for slot in kept]
        # A newcomer's bucket is as the emptiest of the others: a full one would draw all requests at once. The first
        # ones are full.
        poorest = float(max(worth_from)) if len(worth_from) else _LONG_AGO
        self._worth_from = ScoreBoard(
            [poorest + self._random.random() if slot is None else float(worth_from[slot]) for slot in kept]
        )
        super().members(replicas)

    def choose(self, demand: Demand, now: int) -> Replica:
        if not self._begin:
            # Instants are counted from the first one: as floats they then stay exact to the ns for three months.
            self._begin = now - 1
        board, since = self._worth_from, now - self._begin
        if demand.avoid:
            slots = self._slots
            slot = board.lowest_but([slots[replica] for replica in demand.avoid if replica in slots])
            if slot < 0:
                return self.other_than(demand.avoid)
        else:
            slot = board.lowest()
        worth_from = float(board.values[slot])
        if worth_from > since:
            self.empty += 1
            if self._refuse:
                raise QueueFull("every worker's token bucket is empty; policy token_bucket, when_empty: refuse")
            replica = super().choose(demand, now)
            slot = self._slots[replica]
            worth_from = float(board.values[slot])
        # Never fuller than full, nor deeper in debt than a full bucket is rich.
        full_from = since - self._burst_ns
        if worth_from < full_from:
            worth_from = full_from
        worth_from += (demand.rows or 1) / self._rates[slot]
        board.values[slot] = min(worth_from, since + self._burst_ns)
        return self.replicas[slot]

    def sent(self, replica: Replica, now: int) -> None:
        # Here too: a worker that has stopped answers nothing, and what it was sent is its queue.
        self._look(replica, now)
        super().sent(replica, now)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        self._look(replica, now)
        super().ended(replica, latency_ns, failed, now)

    def reported(self, replica: Replica, now: int) -> None:
        # The load it tells is looked at when the answer it came with has ended: twice would cost twice.
        self._look(replica, now)

    def counts(self) -> Mapping[str, int]:
        return {"all_empty": self.empty}

    def _look(self, replica: Replica, now: int) -> None:
        """The refill goes up while the queue is short and the tokens are wanted, and down while it is long."""
        slot = self._slots.get(replica)
        if slot is None or not self._begin:
            return
        elapsed = now - self._looked_at[slot]
        if elapsed < _SPACING_NS:
            return
        if elapsed > _PERIOD_NS:
            elapsed = _PERIOD_NS
        self._looked_at[slot] = now
        fresh = replica.reported_at and now - replica.reported_at <= NEWS_NS
        # Without its word: all but one of those in flight are taken to wait.
        queue = replica.report.queue if fresh else max(replica.in_flight - 1, 0)
        short = max(-4.0, (self._queue - queue) / self._queue)
        worth_from = float(self._worth_from.values[slot]) - (now - self._begin)
        if short > 0 and worth_from < -self._burst_ns / 2:
            # More than half full: a faster refill would not be used.
            return
        rate = self._rates[slot] * 2 ** (short * elapsed / _PERIOD_NS)
        self._rates[slot] = min(max(rate, _LOWEST_RATE), _HIGHEST_RATE)

    def _score(self, replica: Replica, now: int) -> float:
        return replica.load(now)
