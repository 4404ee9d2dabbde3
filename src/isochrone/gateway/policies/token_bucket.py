"""token_bucket: a bucket of tokens per worker. A request takes one token per row; the refill rate follows the queue.

A bucket is stored as one instant: the time at which it becomes non-empty. The choice is the replica with the earliest
instant, so replicas get requests in proportion to their refill rates. A large request may leave a debt. The refill rate
grows while the worker's queue is shorter than ``queue`` and shrinks while it is longer, so it converges to the worker's
speed. If every bucket is empty, ``when_empty`` decides: the least loaded replica, or a rejection.

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
from isochrone.gateway.replicas import FRESH_NS, Replica

#: In this time a refill rate at most doubles, or is halved at most four times.
_PERIOD_NS = 100_000_000
_SPACING_NS = _PERIOD_NS // 16
_LONG_AGO = -1e15
_LOWEST_RATE, _HIGHEST_RATE = 1e-9, 1.0


class TokenBucket(ScoredPolicy):
    """``burst_s``: a full bucket holds the refill of this time. ``rate``: initial tokens per second. ``queue``: queue
    length, in requests, at which the rate stays unchanged. ``when_empty``: least_loaded or refuse."""

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
        #: By slot: tokens per ns, and when the rate was last adjusted.
        self._rates: list[float] = []
        self._adjusted_at: list[int] = []
        #: By slot: the instant, in ns since ``_begin``, at which the bucket becomes non-empty.
        self._filled_from = ScoreBoard()
        self._begin = 0
        #: Choices that found every bucket empty.
        self.empty = 0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        kept = [self._slots.get(replica) for replica in replicas]
        rates, adjusted_at, filled_from = self._rates, self._adjusted_at, self._filled_from.values
        self._rates = [self._first_rate if slot is None else rates[slot] for slot in kept]
        self._adjusted_at = [0 if slot is None else adjusted_at[slot] for slot in kept]
        # A new replica's bucket is as empty as the emptiest other one: a full one would attract all requests at once.
        # The first replicas start full.
        poorest = float(max(filled_from)) if len(filled_from) else _LONG_AGO
        self._filled_from = ScoreBoard(
            [poorest + self._random.random() if slot is None else float(filled_from[slot]) for slot in kept]
        )
        super().replicas_changed(replicas)

    def choose(self, demand: Demand, now: int) -> Replica:
        if not self._begin:
            # Relative to the first choice: as floats the instants then stay exact to the ns for three months.
            self._begin = now - 1
        board, since = self._filled_from, now - self._begin
        if demand.avoid:
            slots = self._slots
            slot = board.lowest_but([slots[replica] for replica in demand.avoid if replica in slots])
            if slot < 0:
                return self.other_than(demand.avoid)
        else:
            slot = board.lowest()
        filled_from = float(board.values[slot])
        if filled_from > since:
            self.empty += 1
            if self._refuse:
                raise QueueFull("every worker's token bucket is empty; policy token_bucket, when_empty: refuse")
            replica = super().choose(demand, now)
            slot = self._slots[replica]
            filled_from = float(board.values[slot])
        # Neither more than full, nor more debt than a full bucket.
        full_from = since - self._burst_ns
        if filled_from < full_from:
            filled_from = full_from
        filled_from += (demand.rows or 1) / self._rates[slot]
        board.values[slot] = min(filled_from, since + self._burst_ns)
        return self.replicas[slot]

    def sent(self, replica: Replica, now: int) -> None:
        # Adjusted here too: a worker that has stopped sends no answers, and its queue is what was sent to it.
        self._adjust(replica, now)
        super().sent(replica, now)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        self._adjust(replica, now)
        super().ended(replica, latency_ns, failed, now)

    def reported(self, replica: Replica, now: int) -> None:
        # The score is updated when the answer that carried this report ends.
        self._adjust(replica, now)

    def counts(self) -> Mapping[str, int]:
        return {"all_empty": self.empty}

    def _adjust(self, replica: Replica, now: int) -> None:
        """Raise the refill rate while the queue is short and the tokens are used; lower it while the queue is long."""
        slot = self._slots.get(replica)
        if slot is None or not self._begin:
            return
        elapsed = now - self._adjusted_at[slot]
        if elapsed < _SPACING_NS:
            return
        if elapsed > _PERIOD_NS:
            elapsed = _PERIOD_NS
        self._adjusted_at[slot] = now
        fresh = replica.reported_at and now - replica.reported_at <= FRESH_NS
        # Without a fresh report, all requests in flight but one are assumed to wait.
        queue = replica.report.queue if fresh else max(replica.in_flight - 1, 0)
        short = max(-4.0, (self._queue - queue) / self._queue)
        filled_from = float(self._filled_from.values[slot]) - (now - self._begin)
        if short > 0 and filled_from < -self._burst_ns / 2:
            # More than half full: a higher rate would not be used.
            return
        rate = self._rates[slot] * 2 ** (short * elapsed / _PERIOD_NS)
        self._rates[slot] = min(max(rate, _LOWEST_RATE), _HIGHEST_RATE)

    def _score(self, replica: Replica, now: int) -> float:
        return replica.load(now)
