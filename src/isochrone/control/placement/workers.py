"""What a worker offers to models: memory, compute, its device, its machine, and how far away it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SERVING, DRAINING, LOST = "serving", "draining", "lost"

#: By model: the workers that have it.
Replicas = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """One worker."""

    name: str
    #: Bytes for models; 0: unknown, not checked.
    memory: int = 0
    #: Batches that it runs at the same time at the speed of the batch curves.
    compute: float = 1.0
    device: str = "cpu"
    #: Its machine; "": unknown, taken for one of its own.
    machine: str = ""
    pool: str = ""
    tier: str = ""
    #: Seconds from a gateway to it and back.
    round_trip: float = 0.0
    #: A draining worker gets no model and gives those it has away. The models of a lost one are gone.
    state: str = SERVING
    #: Models that it could not load.
    rejected: frozenset[str] = frozenset()
