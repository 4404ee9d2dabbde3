"""Runs an ensemble by treelite's own interpreter: every kind of tree, but several times slower than onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from isochrone.worker.backends.fil.ensembles import Ensemble

Rows = npt.NDArray[np.float32]


def treelite_runtime(treelite: Any, ensemble: Ensemble, threads: int) -> Callable[[Rows], Rows]:
    """Rows of features → rows of scores."""
    predict = treelite.gtil.predict

    def run(rows: Rows) -> Rows:
        scores = predict(ensemble.model, rows, nthread=threads)
        return np.ascontiguousarray(scores.reshape(len(rows), ensemble.scores), np.float32)

    return run
