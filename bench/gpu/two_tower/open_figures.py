"""What open-loop outcomes say: latency and failures of a run, the second of a switch, the order of versions; and the
search for the highest rate that keeps a limit. Pure: no process, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.gpu.figures import percentiles_us
from bench.gpu.load.loops import Outcome

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Requests:
    """All requests of a run, in no order. ``ended``: 0 if it failed."""

    due: np.ndarray
    sent: np.ndarray
    ended: np.ndarray
    versions: np.ndarray

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Requests:
        columns = ("due_ns", "sent_ns", "ended_ns", "versions")
        return cls(*(np.concatenate([getattr(each, column) for each in outcomes]) for column in columns))

    def figure(self) -> dict[str, Any]:
        """Latency from the instant at which each was due. Lateness is the generator's own."""
        good = self.ended > 0
        late = np.maximum(0, self.sent - self.due)[self.sent > 0]
        return {
            "requests": len(self.due),
            "unanswered": int((~good).sum()),
            **percentiles_us((self.ended - self.due)[good]),
            "late_p99_us": float(np.percentile(late, 99)) / 1e3 if len(late) else None,
        }

    def p99_by_second(self, start: int) -> dict[int, float]:
        """Milliseconds, by the second in which requests were due."""
        good = self.ended > 0
        seconds = ((self.due - start) // SECOND)[good]
        latency = (self.ended - self.due)[good] / 1e6
        return {int(each): float(np.percentile(latency[seconds == each], 99)) for each in np.unique(seconds)}

    def switch(self, start: int, old: int, new: int) -> dict[str, Any]:
        """Of a strict rollout. A request in flight may still get the old version: one that was sent after an answer of
        the new version had been received must not."""
        by_new, by_old = self.versions == new, self.versions == old
        if not by_new.any():
            return {"switched": False, "answers_old": int(by_old.sum())}
        first = int(self.ended[by_new].min())
        second = (first - start) // SECOND
        by_second = self.p99_by_second(start)
        around = [value for each, value in by_second.items() if abs(each - second) <= 1]
        steady = [value for each, value in by_second.items() if abs(each - second) > 1]
        return {
            "switched": True,
            "switch_at_s": (first - start) / SECOND,
            "answers_old": int(by_old.sum()),
            "answers_new": int(by_new.sum()),
            "violations": int((by_old & (self.sent > first)).sum()),
            "old_answers_received_after": int((by_old & (self.ended > first)).sum()),
            # Of the second of the first new answer, the one before and the one after: the worst of them.
            "p99_ms_around_switch": max(around, default=None),
            "p99_ms_other_seconds_median": float(np.median(steady)) if steady else None,
            # Loading the new version comes before the switch.
            "p99_ms_other_seconds_worst": max(steady, default=None),
        }


@dataclass
class RateSearch:
    """Raises the rate by half until the limit breaks, then halves the gap; ``next`` is None at the end."""

    first: float
    precision: float = 0.05
    most_steps: int = 10
    kept: float = 0.0
    broken: float = 0.0
    tried: list[tuple[float, bool]] = field(default_factory=list)

    def next(self) -> float | None:
        if len(self.tried) >= self.most_steps:
            return None
        if not self.tried:
            return self.first
        if not self.broken:
            return self.kept * 1.5
        if not self.kept:
            return self.broken / 2
        return None if self.broken / self.kept - 1 <= self.precision else (self.kept + self.broken) / 2

    def record(self, rate: float, keeps: bool) -> None:
        self.tried.append((rate, keeps))
        if keeps:
            self.kept = max(self.kept, rate)
        else:
            self.broken = min(self.broken or rate, rate)
