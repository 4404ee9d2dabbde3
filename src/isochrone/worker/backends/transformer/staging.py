"""Memory that the host fills and the device reads, and the way back.

On a CPU both are one memory. On a GPU the host's side is pinned, and copies run on the stream of the steps: the host
waits only where it reads what a step chose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class StagedInput:
    """An array of 32-bit integers that the host writes, and the tensor that the device reads."""

    def __init__(self, size: int, device: Any) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=is_cuda)
        self.array: npt.NDArray[np.int32] = self._host.numpy()
        self.tensor = torch.zeros(size, dtype=torch.int32, device=device) if is_cuda else self._host
        self._is_cuda = is_cuda

    def upload(self, count: int) -> None:
        """Starts to copy the first ``count`` integers. The host must not write until the step is done."""
        if self._is_cuda:
            self.tensor[:count].copy_(self._host[:count], non_blocking=True)


class StagedResults:
    """What a step chose for each row: float64 [2, rows]."""

    def __init__(self, rows: int, device: Any) -> None:
        self._is_cuda = device.type == "cuda"
        self._host = torch.zeros((2, rows), dtype=torch.float64, pin_memory=self._is_cuda)
        self._array: npt.NDArray[np.float64] = self._host.numpy()
        self._event = torch.cuda.Event() if self._is_cuda else None

    def put(self, begin: int, chosen: Any) -> None:
        """Starts to copy the results of the rows from ``begin`` on."""
        end = begin + chosen.shape[1]
        for line in range(2):
            # Line by line: both sides are contiguous, so that each copy is one transfer that the host need not await.
            self._host[line, begin:end].copy_(chosen[line], non_blocking=self._is_cuda)

    def launched(self) -> None:
        """Everything of the step is started."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> npt.NDArray[np.float64]:
        if self._event is not None:
            self._event.synchronize()  # without the interpreter's lock
        return self._array
