"""Memory that the host fills and the device reads, and the way back.

On a CPU both are one memory. On a GPU the host's side is pinned, and copies run on the stream of the steps: the host
waits only where it reads what a step chose. Where steps are launched ahead, the host's side has two buffers: one is
written while the device may still read the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class StagedInput:
    """An array of 32-bit integers that the host writes, and the tensor that the device reads."""

    def __init__(self, size: int, device: Any, buffers: int = 1) -> None:
        is_cuda = device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=is_cuda) for _ in range(buffers)]
        self.arrays: list[npt.NDArray[np.int32]] = [host.numpy() for host in self._hosts]
        self._copies = is_cuda or buffers > 1
        self.tensor = torch.zeros(size, dtype=torch.int32, device=device) if self._copies else self._hosts[0]

    def upload(self, count: int, buffer: int = 0) -> None:
        """Starts to copy the first ``count`` integers. The host must not write to the buffer until the step is done."""
        if self._copies:
            self.tensor[:count].copy_(self._hosts[buffer][:count], non_blocking=True)


class StagedResults:
    """What a step chose for each row: float64 [2, rows]."""

    def __init__(self, rows: int, device: Any, buffers: int = 1) -> None:
        self._is_cuda = device.type == "cuda"
        hosts = [torch.zeros((2, rows), dtype=torch.float64, pin_memory=self._is_cuda) for _ in range(buffers)]
        self._hosts = hosts
        self._arrays: list[npt.NDArray[np.float64]] = [host.numpy() for host in hosts]
        self._events = [torch.cuda.Event() if self._is_cuda else None for _ in range(buffers)]

    def put(self, begin: int, chosen: Any, buffer: int = 0) -> None:
        """Starts to copy the results of the rows from ``begin`` on."""
        end = begin + chosen.shape[1]
        for line in range(2):
            # Line by line: both sides are contiguous, so that each copy is one transfer that the host need not await.
            self._hosts[buffer][line, begin:end].copy_(chosen[line], non_blocking=self._is_cuda)

    def launched(self, buffer: int = 0) -> None:
        """Everything of the step is started."""
        event = self._events[buffer]
        if event is not None:
            event.record()

    def wait(self, buffer: int = 0) -> npt.NDArray[np.float64]:
        event = self._events[buffer]
        if event is not None:
            event.synchronize()  # without the interpreter's lock
        return self._arrays[buffer]
