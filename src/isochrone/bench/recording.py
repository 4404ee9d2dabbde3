"""What a generator measured so far: columns that grow by one entry per request, and errors by their message."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.results.outcomes import OUTCOME_NAMES, UNSENT, GeneratorUse, Outcomes, outcomes_from

#: Different messages that are kept; servers may write ids into them.
MOST_MESSAGES = 20
OTHER_ERRORS = "other errors"
#: Latencies of the latest requests that a report of the progress is computed from: 50 µs for each report.
_RECENT = 1000


class Recorder:
    """Records requests whose intended instant is in the measured window, [begins, ends), in ns of the clock."""

    def __init__(self, begins: int, ends: int) -> None:
        self.begins = begins
        self.ends = ends
        self.errors: dict[str, int] = {}
        #: Requests by outcome.
        self.counts = [0] * len(OUTCOME_NAMES)
        #: From the intended instant to the instant at which the generator turned to the request.
        self.lags = array("q")
        self._intended = array("q")
        self._sent = array("q")
        self._first = array("q")
        self._ended = array("q")
        self._outcome = array("B")
        self._kind = array("H")

    def record(
        self, intended: int, sent: int, first: int, ended: int, outcome: int, kind: int, error: str, lag: int
    ) -> None:
        """``first`` is -1 without an answer."""
        begins = self.begins
        if not begins <= intended < self.ends:
            return
        self.counts[outcome] += 1
        self._intended.append(intended - begins)
        self._sent.append(sent - begins)
        self._first.append(first - begins if first >= 0 else -1)
        self._ended.append(ended - begins)
        self._outcome.append(outcome)
        self._kind.append(kind)
        self.lags.append(lag)
        if error:
            self.count_error(error)

    def count_error(self, message: str) -> None:
        errors = self.errors
        if message not in errors and len(errors) >= MOST_MESSAGES:
            message = OTHER_ERRORS
        errors[message] = errors.get(message, 0) + 1

    def cut(self, ends: int) -> None:
        """End the window earlier: the run was interrupted."""
        self.ends = min(self.ends, ends)

    def outcomes(self) -> Outcomes:
        columns = {
            "intended_ns": self._intended,
            "sent_ns": self._sent,
            "first_ns": self._first,
            "ended_ns": self._ended,
            "outcome": self._outcome,
            "kind": self._kind,
        }
        return outcomes_from({name: np.asarray(column) for name, column in columns.items()})

    def recent_latencies(self) -> tuple[int, int]:
        """Median and 99th percentile of the latest answers in ns; 0 without any."""
        latest = slice(-_RECENT, None)
        outcome = np.array(self._outcome[latest], dtype=np.uint8)
        latencies = np.array(self._ended[latest], dtype=np.int64) - np.array(self._intended[latest], dtype=np.int64)
        latencies = latencies[outcome != UNSENT]
        if not len(latencies):
            return 0, 0
        median, high = np.percentile(latencies, (50, 99))
        return int(median), int(high)


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
