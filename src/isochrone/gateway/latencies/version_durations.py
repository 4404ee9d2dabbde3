"""The durations of one model's requests, by version and outcome. Pure.

Nearly all requests are answered, and are no streams. Of these the shell only adds to two counts, which ``fold`` moves
into the histograms when somebody reads them.

Labels are bounded: a version has series of its own only while a worker is known to serve it, or a control plane has
committed it. Versions that callers make up share those of ``other``.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from isochrone.gateway.latencies.durations import BOUNDS_NS, OWN_BOUNDS_NS, Durations
from isochrone.observe.bucket_counts import BucketCounts

#: Outcomes as callers see them, by number: an answer (the caller's own mistake included); a rejection by this gateway
#: or by workers; a deadline that passed or could not be met; a failure; a caller who left before the answer.
OUTCOMES: Final = ("answered", "rejected", "deadline_exceeded", "failed", "cancelled")
ANSWERED: Final = 0
REJECTED: Final = 1
DEADLINE_EXCEEDED: Final = 2
FAILED: Final = 3
CANCELLED: Final = 4
#: Versions of one model with series of their own.
_MOST_VERSIONS: Final = 64


class VersionDurations:
    """The durations of one version's requests. ``of_outcome``: by the number of the outcome; None: there was none."""

    __slots__ = ("new_durations", "new_shares", "of_outcome", "own", "version")

    def __init__(self, version: str) -> None:
        self.version = version
        self.of_outcome: list[Durations | None] = [None] * len(OUTCOMES)
        #: The gateway's own share of answered requests; not of streams.
        self.own = Durations(OWN_BOUNDS_NS)
        #: Of requests that were answered since the last ``fold``, and of their own shares. A share below zero counts as
        #: zero: a request may have been sent, in vain, before it waited for a worker.
        self.new_durations = BucketCounts(BOUNDS_NS)
        self.new_shares = BucketCounts(OWN_BOUNDS_NS)

    def fold(self) -> None:
        """Add what is new to the histograms. Readers call it first."""
        if self.new_durations.added:
            self.of(ANSWERED).add_all(*self.new_durations.take())
            self.own.add_all(*self.new_shares.take())

    def of(self, outcome: int) -> Durations:
        durations = self.of_outcome[outcome]
        if durations is None:
            durations = self.of_outcome[outcome] = Durations()
        return durations

    def add(self, outcome: int, bucket: int, duration_ns: int) -> Durations:
        """Count a request; returns where it was counted."""
        durations = self.of(outcome)
        durations.add(bucket, duration_ns)
        return durations


class ModelDurations:
    """The durations of one model's requests."""

    def __init__(self) -> None:
        #: Of requests that no version was found for, and of versions that nobody serves.
        self.other = VersionDurations("")
        self._versions: dict[str, VersionDurations] = {"": self.other}
        #: Of the version that the model meant last, also while no worker serves it.
        self.usual: VersionDurations = self.other

    def known(self, version: str) -> VersionDurations | None:
        """The durations of a version that is or was served; "": of the one that the model meant last."""
        return self._versions.get(version) if version else self.usual if self.usual is not self.other else None

    def of(self, version: str, served: Container[str]) -> VersionDurations:
        """The durations of a version that is served. ``served``: versions that must not be forgotten for its sake."""
        found = self._versions.get(version)
        if found is not None:
            return found
        if len(self._versions) >= _MOST_VERSIONS:
            for known in list(self._versions):
                if known and known not in served and self._versions[known] is not self.usual:
                    del self._versions[known]
        if len(self._versions) >= _MOST_VERSIONS:
            return self.other
        made = self._versions[version] = VersionDurations(version)
        return made

    def versions(self) -> list[VersionDurations]:
        return list(self._versions.values())
