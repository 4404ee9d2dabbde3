"""Keeps the replicas of a large fleet out of full garbage collections, which hold the loop for as long as they take.

A hundred thousand replicas take 80 ms to walk. They live long and die by their reference counts, so they are frozen
soon after they are made: the collector does not look at them again. What is frozen and is part of a cycle is never
collected. The young generations are collected first, so what remains is mostly workers that leave for good later.
"""

from __future__ import annotations

import gc

#: Replicas made before all are frozen.
_BATCH = 4096


class ReplicaFreezer:
    """Freezes what was made, a batch at a time."""

    def __init__(self) -> None:
        self._frozen = 0

    def made(self, replicas: int) -> None:
        """So many replicas were made so far."""
        if replicas - self._frozen >= _BATCH:
            self._frozen = replicas
            gc.collect(1)
            gc.freeze()
