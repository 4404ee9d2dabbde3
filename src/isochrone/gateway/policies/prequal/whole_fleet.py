"""Prequal's choice when the fleet is no larger than its pool: everybody is known, from what comes with every answer.

Among those expected to answer about as soon as the quickest, the one with the fewest requests, and equals in turn.
Latencies that differ by little count as equal: going by them would send everything to whoever was lucky last, which is
how Prequal lost to round robin on four equal workers. Three things the figures alone do not say:

- A worker that has requests and answers none. The time since it was last heard of is how long a request takes there at
  least, so a stopped worker looks slow as soon as it is late, however quick it was.
- A worker that never answered but failed. Its latency is not known, and must not pass for a good one.
- A worker that was slow and was passed over since. Its figures are old: now and then one request goes there to see.

Pure; what is kept by slot changes with events, so that a choice costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.gateway.replicas import NEWS_NS, Replica

_NEVER = 1 << 62
#: Everything is looked at again this often: news grows old without an event.
_LOOK_NS = NEWS_NS // 2
#: A passed-over worker gets a request after so long and so many choices, which keeps trials out of the p99. A failed
#: trial doubles both, one that went well halves them: a worker that is well again is back within seconds.
_TRIAL_NS = 1_000_000_000
_TRIAL_CHOICES = 512
_SHORTEST_TRIAL_NS, _LONGEST_TRIAL_NS = 20_000_000, 64_000_000_000
#: A request that came to nothing after this many times the expected latency says that the worker may have stopped.
_SILENCE = 4
#: A worker's word is of its queue and its compute. One that is starved of its processor says little of the time a
#: request waits to be read: it is not expected to be quicker than this share of the mean seen from here.
_BELIEVED = 0.5
#: Weight of one report in the mean of what others sent.
_GAIN = 1 / 4
#: Makes room for the turn below the load in one integer.
_LOAD = 1 << 48


class WholeFleet:
    """The members by slot. ``tolerance``: latencies within this factor are equal, as are those within ``slack_ns``."""

    def __init__(self, tolerance: float, slack_ns: float) -> None:
        self._tolerance = tolerance
        self._slack_ns = slack_ns
        self._replicas: Sequence[Replica] = ()
        self._slots: dict[Replica, int] = {}
        #: How long one more request would take, by figures alone.
        self._expected: list[float] = []
        #: Load and turn in one: the lowest is the next of the least loaded.
        self._rank: list[int] = []
        self._turns: list[int] = []
        #: When it was last heard of, or given something after it had nothing.
        self._heard: list[int] = []
        #: When its silence is longer than what was expected of it; never, while it has nothing.
        self._late: list[float] = []
        #: None of those is before this.
        self._first_late = float(_NEVER)
        #: Requests on it that are not from here, by its own word, and when that came. A mean: its count and ours are
        #: not of the same instant, and the difference of the two alone would jump.
        self._others: list[float] = []
        self._told_at: list[int] = []
        self._last_sent: list[int] = []
        self._sent_at_turn: list[int] = []
        self._trial_ns: list[int] = []
        #: Slots that let a request fail or be given up in silence: late for as long as nothing is heard of them.
        self._suspects: set[int] = set()
        #: Slots whose trial is under way.
        self._tried: set[int] = set()
        #: Slots whose figures changed since the last choice. An answer brings two events: they are looked at once.
        self._changed: set[int] = set()
        self._turn = 0
        self._looked_at = -_NEVER
        self._trial = -1
        #: The last choice was among all: nobody was late, and all about as quick.
        self._all_safe = False
        #: Whose news is old, for the shell to ask.
        self.silent: list[Replica] = []
        #: Requests sent to see whether a passed-over worker is well again.
        self.trials = 0

    def members(self, replicas: Sequence[Replica], order: Sequence[int]) -> None:
        """The members are these; ``order``: the places of newcomers among equals."""
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
        self._told_at = carried(self._told_at, -_NEVER)
        self._last_sent = carried(self._last_sent, 0)
        self._sent_at_turn = carried(self._sent_at_turn, self._turn)
        self._trial_ns = carried(self._trial_ns, _TRIAL_NS)
        self._replicas = replicas
        self._slots = {replica: slot for slot, replica in enumerate(replicas)}
        self._expected = [0.0] * len(replicas)
        self._rank = [0] * len(replicas)
        self._late = [float(_NEVER)] * len(replicas)
        self._first_late = float(_NEVER)
        self._trial = -1
        self._tried.clear()
        self._changed.clear()
        self._looked_at = -_NEVER

    def choose(self, avoid: Sequence[Replica], now: int) -> Replica:
        """The member a request goes to."""
        if now - self._looked_at >= _LOOK_NS:
            self._look(now)
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
        """Who else would have done, right after a ``choose`` that had nobody to avoid: not late, and about as quick as
        the quickest. Nobody, where the choice was a trial."""
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
            # No sign of life: it may be this gateway that gave up waiting.
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
        self._heard[slot] = now
        self._suspects.discard(slot)
        self._changed.add(slot)
        others = replica.report.in_flight - replica.in_flight
        if now - self._told_at[slot] <= NEWS_NS:
            self._others[slot] += (others - self._others[slot]) * _GAIN
        else:
            self._others[slot] = others
        self._told_at[slot] = now

    def _suspect(self, slot: int, replica: Replica, now: int) -> None:
        """A request there came to nothing. With no other word for several times as long as expected, it may have
        stopped, and having nothing in flight any more does not make it well."""
        expected = replica.expected_ns(now) or self._stand_in(replica)
        if now - self._heard[slot] > _SILENCE * expected + self._slack_ns:
            self._suspects.add(slot)

    def _update(self, slot: int, replica: Replica, now: int) -> None:
        load = in_flight = replica.in_flight
        if self._others[slot] > 0.5 and now - self._told_at[slot] <= NEWS_NS:
            load += int(self._others[slot] + 0.5)
        self._rank[slot] = load * _LOAD + self._turns[slot]
        expected = replica.expected_ns(now) or self._stand_in(replica)
        since = replica.sent_since
        if since and now - replica.reported_at <= NEWS_NS:
            # Its word knows nothing of what was sent since, of which no more is there than is in flight.
            expected += (since if since < in_flight else in_flight) * replica.report.run_ns
        seen = replica.latency_ns * _BELIEVED
        if seen > expected:
            expected = seen
        self._expected[slot] = expected
        late: float = _NEVER
        if in_flight or slot in self._suspects:
            late = self._heard[slot] + expected + self._slack_ns
        self._late[slot] = late
        if late < self._first_late:
            self._first_late = late

    def _stand_in(self, replica: Replica) -> float:
        """For the latency of one that never answered: the quickest's, and more for each failure."""
        known = [expected for expected in map(_seen_ns, self._replicas) if expected]
        return (min(known) if known else 1.0) * (1 + 8 * replica.error_rate) + 8 * self._slack_ns * replica.error_rate

    def _look(self, now: int) -> None:
        """At everybody: who is silent, and who has been passed over for long."""
        self._looked_at = now
        self._changed.clear()
        self.silent = [replica for replica in self._replicas if now - replica.reported_at >= _LOOK_NS]
        for slot, replica in enumerate(self._replicas):
            # A newcomer may have requests already, from before it was last left out.
            self._heard[slot] = self._heard[slot] or now
            self._update(slot, replica, now)
            if (
                not replica.in_flight
                and now - self._last_sent[slot] >= self._trial_ns[slot]
                and (self._turn - self._sent_at_turn[slot]) * _TRIAL_NS >= _TRIAL_CHOICES * self._trial_ns[slot]
            ):
                self._trial = slot

    def _choose_with_care(self, avoid: Sequence[Replica], now: int) -> int:
        """The same rule where some are tried already, late, or due for a trial."""
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
                float(_NEVER) if replica in avoid else value
                for replica, value in zip(self._replicas, expected, strict=True)
            ]
        return self._least_loaded(expected, min(expected) * self._tolerance + self._slack_ns)

    def _least_loaded(self, expected: list[float], limit: float) -> int:
        best, lowest = -1, 0
        for slot, rank in enumerate(self._rank):
            if expected[slot] <= limit and (best < 0 or rank < lowest):
                best, lowest = slot, rank
        return best


def _seen_ns(replica: Replica) -> float:
    return replica.latency_ns or float(replica.report.run_ns)
