"""Keeps the replicas of a large fleet out of full garbage collections, which hold the loop for as long as they take.

A hundred thousand replicas take 80 ms to walk. They live long and die by their reference counts, so they are frozen
soon after they are made: the collector does not look at them again. What is frozen and is part of a cycle would never
be collected, such as a worker that has left for good; so when many have left, everything is collected once, which takes
as long as a full collection does.
"""

from __future__ import annotations

import gc

#: Replicas made before all are frozen.
_BATCH = 4096
#: Workers that leave before what is frozen is collected once.
_DEPARTURES = 512


class ReplicaFreezer:
    """Freezes what was made, a batch at a time."""

    def __init__(self) -> None:
        self._frozen = 0
        self._departures = 0

    def made(self, replicas: int) -> None:
        """So many replicas were made so far."""
        if replicas - self._frozen >= _BATCH:
            self._frozen = replicas
            gc.collect(1)
            gc.freeze()

    def left(self) -> None:
        """A worker has left."""
        self._departures += 1
        if self._frozen and self._departures >= _DEPARTURES:
            self._departures = 0
            gc.unfreeze()
            # The collector would not come by itself: it waits until a quarter of what it knows is new.
            gc.collect()
            gc.freeze()
