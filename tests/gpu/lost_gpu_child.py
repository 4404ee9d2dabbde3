"""Loses its GPU while batches are in flight, and prints what came of each: run by ``test_gpu_memory``.

A process that has lost its GPU cannot use it any more, so the tests' own must not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gpu_models import GROUP, Indexing, on_gpu, write

from isochrone.devices import losses
from isochrone.worker.backends.devices.memory_ledger import ledger_of
from isochrone.worker.backends.interface import DeviceLost

CONFIG = (
    "max_batch_size: 4\n"
    'input { name: "x" data_type: TYPE_INT64 dims: [ 2 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 2, 32 ] }\n' + GROUP
)


def main(directory: Path) -> None:
    write(directory, Indexing(), torch.zeros((2, 2), dtype=torch.int64))
    executable = on_gpu(directory, CONFIG)
    flights = []
    for index in (2, 10**6, 3):
        try:
            flights.append(executable._launch([{"x": np.array([[1, index]])}], [1], [None], 1, ()))
        except DeviceLost:  # the one before was quick
            flights.append(None)
    came = []
    for flight in flights:
        try:
            if flight is None:
                came.append("lost")
                continue
            executable.collect_batch(flight)
            came.append("answered")
        except DeviceLost:
            came.append("lost")
    try:
        executable.close()
    except Exception as error:
        came.append(type(error).__name__)
    print(json.dumps({"came": came, "is_lost": losses.is_lost(), "held": len(list(ledger_of("cuda:0")))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
