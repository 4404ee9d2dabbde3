"""Whether remote answers come in time: trust that is lost within a few ticks, and regained by probes. Pure.

While the remote model is trusted, every tick asks it. It is doubted when a quantile of the recent times exceeds the
time in which an answer can be used. Requests without an answer count with their age, failures as infinitely long, so a
dead link is noticed before any request has timed out. In doubt, probes are sent at a bounded rate; several in a row
that come well within the time restore trust. If trust is lost again soon, the next time needs twice as many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from isochrone.client.control_loop.quantiles import quantile_of
from isochrone.clock import MILLISECOND, NEVER, SECOND


@dataclass(frozen=True, slots=True)
class TrustRules:
    """When the remote model is trusted. Times in ns."""

    #: The latest answers that count, and how old one may be.
    window: int = 8
    sample_age: int = 2 * SECOND
    #: Fewer say nothing.
    fewest: int = 3
    #: Doubted when more than a quarter of the window is late: three of eight.
    quantile: float = 0.75
    #: In doubt, between probes without a good answer. After a good one the next tick sends another.
    probe_interval: int = 100 * MILLISECOND
    #: Good probes in a row that restore trust; a good one takes at most this share of the usable time.
    confirmations: int = 3
    headroom: float = 0.8
    #: Lost again within this time, trust needs twice as many confirmations, up to a limit.
    relapse: int = 2 * SECOND
    most_confirmations: int = 12


class RemoteTrust:
    """State of one loop's view of the remote model."""

    __slots__ = (
        "_confirmed",
        "_good_since",
        "_needed",
        "_next_probe",
        "_pending",
        "_regained",
        "_rules",
        "_samples",
        "is_trusted",
        "losses",
    )

    def __init__(self, rules: TrustRules) -> None:
        self._rules = rules
        #: (when it was known, how long the answer took); NEVER for failures.
        self._samples: deque[tuple[int, int]] = deque(maxlen=rules.window)
        #: Instants at which ticks asked, of requests without an answer.
        self._pending: dict[int, int] = {}
        self.is_trusted = True
        #: How often trust was lost.
        self.losses = 0
        self._confirmed = 0
        self._needed = rules.confirmations
        self._regained: int | None = None
        self._next_probe = 0
        #: When the latest good probe was sent: failures of earlier ones are old news.
        self._good_since = 0

    def asked(self, tick: int, now: int) -> None:
        self._pending[tick] = now
        if not self.is_trusted:
            self._next_probe = now + self._rules.probe_interval

    def answered(self, tick: int, now: int, usable: int) -> int | None:
        """The round trip of a tick's request, unless it was given up before."""
        asked = self._pending.pop(tick, None)
        if asked is None:
            return None
        took = now - asked
        self._samples.append((now, took))
        if not self.is_trusted:
            if took <= self._rules.headroom * usable:
                self._confirm(asked, now)
            elif asked >= self._good_since:
                self._confirmed = 0
        return took

    def failed(self, tick: int, now: int) -> None:
        asked = self._pending.pop(tick, None)
        if asked is None:
            return
        self._samples.append((now, NEVER))
        if asked >= self._good_since:
            self._confirmed = 0

    def estimate(self, now: int, usable: int) -> int | None:
        """The quantile of the recent times; None: too few are known."""
        rules = self._rules
        overdue = [age for asked in self._pending.values() if (age := now - asked) > usable][-rules.window :]
        recent = [took for at, took in self._samples if now - at <= rules.sample_age]
        # Requests without an answer are the latest news.
        known = (recent + overdue)[-rules.window :]
        return quantile_of(known, rules.quantile) if len(known) >= rules.fewest else None

    def review(self, now: int, usable: int) -> None:
        """Withdraw trust if answers do not come within ``usable``."""
        if not self.is_trusted:
            return
        estimate = self.estimate(now, usable)
        if estimate is None or estimate <= usable:
            return
        rules = self._rules
        self.is_trusted = False
        self.losses += 1
        is_relapse = self._regained is not None and now - self._regained <= rules.relapse
        self._needed = min(self._needed * 2, rules.most_confirmations) if is_relapse else rules.confirmations
        self._confirmed = 0
        self._next_probe = now + rules.probe_interval

    def is_gone(self, now: int) -> bool:
        """Whether every recent request failed."""
        recent = [took for at, took in self._samples if now - at <= self._rules.sample_age]
        return len(recent) >= self._rules.fewest and min(recent) == NEVER

    def may_probe(self, now: int) -> bool:
        return now >= self._next_probe

    def _confirm(self, asked: int, now: int) -> None:
        self._confirmed += 1
        self._good_since = asked
        self._next_probe = now
        if self._confirmed < self._needed:
            return
        self.is_trusted = True
        self._regained = now
        # What was slow before has been answered by the probes.
        last = self._samples[-1]
        self._samples.clear()
        self._samples.append(last)
        self._pending.clear()
