"""What a generator measured so far: columns that grow by one entry per request, and errors by their message."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.results.outcomes import (
    LATE,
    OK,
    OUTCOME_NAMES,
    UNSENT,
    GeneratorUse,
    Outcomes,
    outcomes_from,
)

#: Different messages that are kept; servers may write ids into them.
MOST_MESSAGES = 20
OTHER_ERRORS = "other errors"
#: Latencies of the latest requests that a report of the progress is computed from: 50 µs for each report.
_RECENT = 1000
#: Stalls that are kept.
_MOST_STALLS = 100


class _Columns:
    """Grows by one entry per request; instants are ns since ``begins``."""

    __slots__ = ("_begins", "ended", "error", "first", "intended", "kind", "lag", "outcome", "sent")

    def __init__(self, begins: int) -> None:
        self._begins = begins
        self.intended = array("q")
        self.sent = array("q")
        self.first = array("q")
        self.ended = array("q")
        self.outcome = array("B")
        self.kind = array("H")
        #: The number of its error message; 0: none.
        self.error = array("B")
        #: From the intended instant to the instant at which the generator turned to the request.
        self.lag = array("q")

    def append(self, intended: int, sent: int, first: int, ended: int, outcome: int, kind: int) -> None:
        begins = self._begins
        self.intended.append(intended - begins)
        self.sent.append(sent - begins)
        self.first.append(first - begins if first >= 0 else -1)
        self.ended.append(ended - begins)
        self.outcome.append(outcome)
        self.kind.append(kind)

    def outcomes(self, chosen: NDArray[np.bool_]) -> Outcomes:
        columns = {
            "intended_ns": self.intended,
            "sent_ns": self.sent,
            "first_ns": self.first,
            "ended_ns": self.ended,
            "outcome": self.outcome,
            "kind": self.kind,
        }
        return outcomes_from({name: np.asarray(column)[chosen] for name, column in columns.items()})


class Recorder:
    """Records requests whose intended instant is in the measured window, [begins, ends), in ns of the clock.

    Apart from them, requests of the warm-up that are answered in the window: rates of answers need them.
    """

    def __init__(self, begins: int, ends: int) -> None:
        self.begins = begins
        self.ends = ends
        #: Requests by outcome, for the progress.
        self.counts = [0] * len(OUTCOME_NAMES)
        #: Requests in the window that an interruption left without an outcome.
        self.unfinished = 0
        self._columns = _Columns(begins)
        self._carried = _Columns(begins)
        #: Message → its number, from 1.
        self._messages: dict[str, int] = {}
        self._stalls: list[tuple[int, int]] = []

    def record(
        self, intended: int, sent: int, first: int, ended: int, outcome: int, kind: int, error: str, lag: int
    ) -> None:
        """``first`` is -1 without a first token."""
        if not self.begins <= intended < self.ends:
            if intended < self.begins <= ended < self.ends and outcome in (OK, LATE):
                self._carried.append(intended, sent, first, ended, outcome, kind)
            return
        self.counts[outcome] += 1
        columns = self._columns
        columns.append(intended, sent, first, ended, outcome, kind)
        columns.lag.append(lag)
        columns.error.append(self._number_of(error) if error else 0)

    def leave(self, intended: int) -> None:
        """A request was given up without an outcome, since the run was interrupted."""
        if self.begins <= intended < self.ends:
            self.unfinished += 1

    def stood_still(self, begins: int, ends: int) -> None:
        """The generator did nothing from one instant to another."""
        if ends > self.begins and len(self._stalls) < _MOST_STALLS:
            self._stalls.append((max(0, begins - self.begins), ends - self.begins))

    def cut(self, ends: int) -> None:
        """End the window earlier: the run was interrupted."""
        self.ends = min(self.ends, ends)

    @property
    def errors(self) -> dict[str, int]:
        """Message → requests in the window."""
        counts = np.bincount(np.asarray(self._columns.error)[self._in_window()], minlength=len(self._messages) + 1)
        return {message: int(counts[number]) for message, number in self._messages.items() if counts[number]}

    @property
    def lags(self) -> NDArray[np.int64]:
        return np.asarray(self._columns.lag)[self._in_window()]

    @property
    def stalls(self) -> list[tuple[int, int]]:
        """In ns since the start of the window; those of its length."""
        length = self.ends - self.begins
        return [(begins, min(ends, length)) for begins, ends in self._stalls if begins < length]

    def outcomes(self) -> Outcomes:
        return self._columns.outcomes(self._in_window())

    def carried(self) -> Outcomes:
        return self._carried.outcomes(np.asarray(self._carried.ended) < self.ends - self.begins)

    def recent_latencies(self) -> tuple[int, int]:
        """Median and 99th percentile of the latest answers in ns; 0 without any."""
        latest = slice(-_RECENT, None)
        columns = self._columns
        outcome = np.array(columns.outcome[latest], dtype=np.uint8)
        ended, intended = (np.array(each[latest], dtype=np.int64) for each in (columns.ended, columns.intended))
        latencies = (ended - intended)[outcome != UNSENT]
        count = len(latencies)
        if not count:
            return 0, 0
        # Not np.percentile: its first call imports a package, and requests wait for that.
        latencies.sort()
        return int(latencies[count // 2]), int(latencies[count * 99 // 100])

    def _in_window(self) -> NDArray[np.bool_]:
        """Entries that are in the window since it was cut."""
        return np.asarray(self._columns.intended) < self.ends - self.begins

    def _number_of(self, message: str) -> int:
        messages = self._messages
        if message not in messages and len(messages) >= MOST_MESSAGES:
            message = OTHER_ERRORS
        return messages.setdefault(message, len(messages) + 1)


def use_of(lags: Sequence[int] | NDArray[np.int64], cpu_share: float) -> GeneratorUse:
    values = np.asarray(lags, dtype=np.int64)
    if not len(values):
        return GeneratorUse(cpu_share, 0, 0, 0)
    median, high = np.percentile(values, (50, 99))
    return GeneratorUse(cpu_share, int(median), int(high), int(values.max()))


def added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Errors of several generators, the most frequent first; bounded as each of them."""
    total: dict[str, int] = {}
    for part in parts:
        for message, count in part.items():
            total[message] = total.get(message, 0) + count
    ordered = sorted(total.items(), key=lambda item: (item[0] == OTHER_ERRORS, -item[1], item[0]))
    kept = dict(ordered[:MOST_MESSAGES])
    rest = sum(count for _, count in ordered[MOST_MESSAGES:])
    if rest:
        kept[OTHER_ERRORS] = kept.get(OTHER_ERRORS, 0) + rest
    return kept
