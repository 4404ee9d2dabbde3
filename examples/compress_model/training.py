"""What both scripts train with: batches of random rows, and training on labels alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from isochrone.optimize.training import distill

BATCH = 64


class Shuffled:
    """Batches of random rows: as many as ``rows`` fill, in each epoch others."""

    def __init__(self, samples: Any, labels: Any, rows: int) -> None:
        self._samples, self._labels, self._count = samples, labels, rows // BATCH

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self._count):
            chosen = torch.randint(len(self._samples), (BATCH,))
            yield self._samples[chosen], self._labels[chosen]


def on_labels(module: Any, batches: Any, epochs: int, learning_rate: float, seed: int) -> Any:
    """Distillation without a share of the teacher is training on labels."""
    return distill(module, module, batches, epochs=epochs, weight=0.0, learning_rate=learning_rate, seed=seed).module
