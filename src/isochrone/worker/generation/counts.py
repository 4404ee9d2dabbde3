"""Counts and durations of one engine, for the metrics page. Its engine's thread alone changes them."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, Histogram
from isochrone.worker.generation.scheduling.sequence import TokenSequence


class Durations:
    """A histogram that grows by single values."""

    __slots__ = ("_bucket", "_counts", "_last_ns", "_sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKET_BOUNDS_NS) + 1)
        self._sum_ns = 0
        #: The latest value and its bucket: sequences of one step mostly have the same time between tokens.
        self._last_ns = -1
        self._bucket = 0

    def add(self, ns: int) -> None:
        if ns != self._last_ns:
            self._last_ns = ns
            self._bucket = bisect_left(BUCKET_BOUNDS_NS, ns)
        self._counts[self._bucket] += 1
        self._sum_ns += ns

    def snapshot(self) -> Histogram:
        return Histogram(np.array(self._counts, np.int64), self._sum_ns)


class EngineCounts:
    """Counts since the load of the version."""

    __slots__ = ("between_tokens", "first_token", "generated_tokens", "late_tokens", "prompt_tokens", "steps")

    def __init__(self) -> None:
        #: Tokens of prompts that were taken, and of answers.
        self.prompt_tokens = 0
        self.generated_tokens = 0
        #: Tokens that came after their deadline.
        self.late_tokens = 0
        self.steps = 0
        #: From a request's arrival to its first token, and from each token to the next.
        self.first_token = Durations()
        self.between_tokens = Durations()

    def note_token(self, sequence: TokenSequence) -> None:
        """Counts the latest token of a sequence."""
        self.generated_tokens += 1
        last, now = sequence.previous_at, sequence.last_at
        if not last:
            self.first_token.add(now - sequence.arrived)
            self.late_tokens += now > sequence.first_deadline
            return
        self.between_tokens.add(now - last)
        asked = sequence.parameters.inter_token_ns
        self.late_tokens += 0 < asked < now - last
