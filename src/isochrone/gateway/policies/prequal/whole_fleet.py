"""Prequal's choice when the fleet fits into the pool: all replicas are compared, by the load reports of their answers.

Among the replicas whose expected latency is about as low as the lowest, it chooses the one with the fewest requests;
equal replicas take turns. Latencies that differ by little count as equal. Otherwise all requests would follow the last
lucky answer, and Prequal lost to round robin on four equal workers that way. Three cases need more than the figures:

- A worker has requests and does not answer. Its latency is at least the time since its last sign of life, so a stopped
  worker looks slow as soon as it is late.
- A worker has failed and never answered. Its latency is unknown, and must not count as low.
- A worker was slow and has been passed over since. Its figures are old, so it occasionally gets a trial request.

Pure. State per slot changes with events, so that a choice costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.clock import NEVER
from isochrone.gateway.replicas import FRESH_NS, Replica

#: All figures are recomputed this often: a load report expires without an event.
_REFRESH_NS = FRESH_NS // 2
#: A passed-over worker gets a trial request after this time and this many choices, which keeps trials out of the p99.
#: A failed trial doubles both, a successful one halves them: a worker that has recovered is back within seconds.
_TRIAL_NS = 1_000_000_000
_TRIAL_CHOICES = 512
_SHORTEST_TRIAL_NS, _LONGEST_TRIAL_NS = 20_000_000, 64_000_000_000
#: A worker that was silent for this many times its expected latency when a request failed may have stopped.
_SILENCE = 4
#: A load report covers queue and compute, not the time a request waits to be read on a busy processor. So the expected
#: latency is never below this share of the mean latency measured here.
_BELIEVED = 0.5
#: Weight of one report in the mean of other gateways' requests.
_GAIN = 1 / 4
#: Load and turn share one integer; the turn has the low bits.
_LOAD = 1 << 48


class WholeFleet:
    """All replicas by slot. ``tolerance``, ``slack_ns``: latencies within this factor and time count as equal."""

    def __init__(self, tolerance: float, slack_ns: float) -> None:
        self._tolerance = tolerance
        self._slack_ns = slack_ns
        self._replicas: Sequence[Replica] = ()
        self._slots: dict[Replica, int] = {}
        #: How long one more request would take, in ns.
        self._expected: list[float] = []
        #: Load and turn: the lowest is the next of the least loaded replicas.
        self._rank: list[int] = []
        self._turns: list[int] = []
        #: When its last sign of life came, or its first request after it was idle.
        self._heard: list[int] = []
        #: When its silence exceeds the expected latency; never, while it is idle.
        self._late: list[float] = []
        #: A lower bound of ``_late``.
        self._first_late = float(NEVER)
        #: Requests of other gateways on it as reported, and when. A mean: the worker's count and ours are of different
        #: instants, so their difference alone would jump.
        self._others: list[float] = []
        self._reported_at: list[int] = []
        self._last_sent: list[int] = []
        self._sent_at_turn: list[int] = []
        self._trial_ns: list[int] = []
        #: Slots where a request failed or was given up in silence: late until they give a sign of life.
        self._suspects: set[int] = set()
        #: Slots with a trial in flight.
        self._tried: set[int] = set()
        #: Slots whose figures changed since the last choice. An answer causes two events and one update.
        self._changed: set[int] = set()
        self._turn = 0
        self._refreshed_at = -NEVER
        self._trial = -1
        #: The last choice was among all replicas: none was late, all were about as fast.
        self._all_safe = False
        #: Replicas without a recent load report, to be probed.
        self.silent: list[Replica] = []
        #: Trial requests sent to passed-over workers.
        self.trials = 0

    def replicas_changed(self, replicas: Sequence[Replica], order: Sequence[int]) -> None:
        """Replace the replicas. ``order``: the turns of new replicas among equals."""
        kept = [self._slots.get(replica, -1) for replica in replicas]
        self._suspects = {slot for slot, before in enumerate(kept) if before in self._suspects}
        self._turn += len(replicas)

        def carried(values: list[int], otherwise: int) -> list[int]:
            return [values[slot] if slot >= 0 else otherwise for slot in kept]

        self._turns = [
            self._turns[slot] if slot >= 0 else self._turn - place for slot, place in zip(kept, order, strict=True)
        ]
        self._heard = carried(self._heard, 0)
        self._others = [self._others[slot] if slot >= 0 else 0.0 for slot in kept]
        self._reported_at = carried(self._reported_at, -NEVER)
        self._last_sent = carried(self._last_sent, 0)
        self._sent_at_turn = carried(self._sent_at_turn, self._turn)
        self._trial_ns = carried(self._trial_ns, _TRIAL_NS)
        self._replicas = replicas
        self._slots = {replica: slot for slot, replica in enumerate(replicas)}
        self._expected = [0.0] * len(replicas)
        self._rank = [0] * len(replicas)
        self._late = [float(NEVER)] * len(replicas)
        self._first_late = float(NEVER)
        self._trial = -1
        self._tried.clear()
        self._changed.clear()
        self._refreshed_at = -NEVER

    def choose(self, avoid: Sequence[Replica], now: int) -> Replica:
        """The replica for a request."""
        if now - self._refreshed_at >= _REFRESH_NS:
            self._refresh(now)
        elif self._changed:
            for slot in self._changed:
                self._update(slot, self._replicas[slot], now)
            self._changed.clear()
        expected, rank = self._expected, self._rank
        self._all_safe = False
        if avoid or self._trial >= 0 or self._first_late < now:
            self._first_late = min(self._late)
            if avoid or self._trial >= 0 or self._first_late < now:
                return self._replicas[self._choose_with_care(avoid, now)]
        limit = min(expected) * self._tolerance + self._slack_ns
        if max(expected) <= limit:
            self._all_safe = True
            return self._replicas[rank.index(min(rank))]
        return self._replicas[self._least_loaded(expected, limit)]

    def safe(self, now: int) -> Sequence[Replica]:
        """The replicas that the last ``choose`` might have chosen: not late, and about as fast as the fastest.

        Valid right after a ``choose`` without ``avoid``. Empty if that was a trial.
        """
        if self._all_safe:
            return self._replicas
        if self._trial >= 0:
            return []
        replicas, expected = self._replicas, self._expected
        limit = min(expected) * self._tolerance + self._slack_ns
        if self._first_late >= now:
            return [replica for replica, value in zip(replicas, expected, strict=True) if value <= limit]
        rows = zip(replicas, expected, self._late, strict=True)
        return [replica for replica, value, late in rows if value <= limit and late >= now]

    def sent(self, replica: Replica, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is None:
            return
        self._turn += 1
        self._turns[slot] = self._sent_at_turn[slot] = self._turn
        self._last_sent[slot] = now
        if replica.in_flight == 1 and slot not in self._suspects:
            self._heard[slot] = now
        if slot == self._trial:
            self._trial = -1
            self._tried.add(slot)
            self.trials += 1
        self._changed.add(slot)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is None:
            return
        if failed:
            # Not a sign of life: this gateway may have given up waiting.
            self._suspect(slot, replica, now)
        else:
            self._heard[slot] = now
            self._suspects.discard(slot)
        self._changed.add(slot)
        if slot in self._tried:
            self._tried.discard(slot)
            trial_ns = self._trial_ns[slot]
            if failed:
                self._trial_ns[slot] = min(trial_ns * 2, _LONGEST_TRIAL_NS)
            elif latency_ns <= min(self._expected) * self._tolerance + self._slack_ns:
                self._trial_ns[slot] = max(trial_ns // 2, _SHORTEST_TRIAL_NS)
            else:
                self._trial_ns[slot] = _TRIAL_NS

    def dropped(self, replica: Replica, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is not None:
            self._suspect(slot, replica, now)
            self._changed.add(slot)

    def reported(self, replica: Replica, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is None:
            return
        # A probe's report may be taken after later signs of life.
        self._heard[slot] = max(self._heard[slot], now)
        self._suspects.discard(slot)
        self._changed.add(slot)
        others = replica.report.in_flight - replica.in_flight
        if now - self._reported_at[slot] <= FRESH_NS:
            self._others[slot] += (others - self._others[slot]) * _GAIN
        else:
            self._others[slot] = others
        self._reported_at[slot] = now

    def _suspect(self, slot: int, replica: Replica, now: int) -> None:
        """Suspect a replica whose request failed. If it has been silent for several times the expected latency, it may
        have stopped, also when it has no requests in flight any more."""
        expected = replica.expected_ns(now) or self._stand_in(replica)
        if now - self._heard[slot] > _SILENCE * expected + self._slack_ns:
            self._suspects.add(slot)

    def _update(self, slot: int, replica: Replica, now: int) -> None:
        load = in_flight = replica.in_flight
        if self._others[slot] > 0.5 and now - self._reported_at[slot] <= FRESH_NS:
            load += int(self._others[slot] + 0.5)
        self._rank[slot] = load * _LOAD + self._turns[slot]
        expected = replica.expected_ns(now) or self._stand_in(replica)
        since = replica.sent_since
        if since and now - replica.reported_at <= FRESH_NS:
            # The report does not include requests sent since; at most those in flight are still there.
            expected += (since if since < in_flight else in_flight) * replica.report.run_ns
        seen = replica.latency_ns * _BELIEVED
        if seen > expected:
            expected = seen
        self._expected[slot] = expected
        late: float = float(NEVER)
        if in_flight or slot in self._suspects:
            late = self._heard[slot] + expected + self._slack_ns
        self._late[slot] = late
        if late < self._first_late:
            self._first_late = late

    def _stand_in(self, replica: Replica) -> float:
        """A latency for a replica without answers: the lowest of the others, raised by its error rate."""
        known = [expected for expected in map(_latency_ns, self._replicas) if expected]
        return (min(known) if known else 1.0) * (1 + 8 * replica.error_rate) + 8 * self._slack_ns * replica.error_rate

    def _refresh(self, now: int) -> None:
        """Recompute all figures, and find replicas that are silent or due for a trial."""
        self._refreshed_at = now
        self._changed.clear()
        self.silent = [replica for replica in self._replicas if now - replica.reported_at >= _REFRESH_NS]
        for slot, replica in enumerate(self._replicas):
            # A replica that is eligible again may still have requests from before.
            self._heard[slot] = self._heard[slot] or now
            self._update(slot, replica, now)
            if (
                not replica.in_flight
                and now - self._last_sent[slot] >= self._trial_ns[slot]
                and (self._turn - self._sent_at_turn[slot]) * _TRIAL_NS >= _TRIAL_CHOICES * self._trial_ns[slot]
            ):
                self._trial = slot

    def _choose_with_care(self, avoid: Sequence[Replica], now: int) -> int:
        """The same rule when replicas are to be avoided, late, or due for a trial."""
        expected = [
            float(now - heard) if late < now else value
            for value, late, heard in zip(self._expected, self._late, self._heard, strict=True)
        ]
        if self._trial >= 0:
            if not self._replicas[self._trial].in_flight and self._replicas[self._trial] not in avoid:
                return self._trial
            if not avoid:
                self._trial = -1
        if avoid and any(replica not in avoid for replica in self._replicas):
            expected = [
                float(NEVER) if replica in avoid else value
                for replica, value in zip(self._replicas, expected, strict=True)
            ]
        return self._least_loaded(expected, min(expected) * self._tolerance + self._slack_ns)

    def _least_loaded(self, expected: list[float], limit: float) -> int:
        best, lowest = -1, 0
        for slot, rank in enumerate(self._rank):
            if expected[slot] <= limit and (best < 0 or rank < lowest):
                best, lowest = slot, rank
        return best


def _latency_ns(replica: Replica) -> float:
    return replica.latency_ns or float(replica.report.run_ns)
