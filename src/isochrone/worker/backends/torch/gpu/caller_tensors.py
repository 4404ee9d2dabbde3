"""Callers' memory on the device, as torch's tensors: the inputs of requests in CUDA shared memory, and their outputs.

The instance's stream reads inputs there and writes results there. Never waits for the device, and owns no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from isochrone.devices.device_array import DeviceArray

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.backends.torch.gpu.device import Device

#: Tensors of callers' memory that an instance remembers: making one takes 10 µs.
_MAX_TENSORS = 4096


class CallerTensors:
    """The callers' memory that one instance reads and writes."""

    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._device = device
        #: By address, shape and type.
        self._tensors: dict[Any, Any] = {}

    def clear(self) -> None:
        self._tensors.clear()

    def has_inputs_of(self, request: InferRequest) -> bool:
        """Whether all inputs are on the instance's own device."""
        given: list[Any] = list(request.inputs.values())
        return all(isinstance(array, DeviceArray) and self._is_here(array.foreign) for array in given)

    def joined(self, arrays: list[Any]) -> Any:
        """The callers' arrays as one tensor on the device. On the stream that computes."""
        tensors = [
            self._tensor_at(array.foreign) if isinstance(array, DeviceArray) else self._copy_of(array)
            for array in arrays
        ]
        return tensors[0] if len(tensors) == 1 else self._torch.cat(tensors)

    def write(
        self,
        results: Sequence[tuple[str, np.dtype[Any], Any]],
        requests: Sequence[InferRequest],
        parts: Sequence[int] | None,
        wanted: Sequence[tuple[str, ...] | None],
    ) -> tuple[dict[int, Tensors], set[str]]:
        """Copies results into the memory on the device that callers named. On the stream that computes.

        ``results`` are the name, type and tensor of each output, ``parts`` the rows of each request (None: the model
        has no batches), ``wanted`` the names of each request's outputs (None: all). Returns the outputs that are in
        callers' memory, by the index of their request, and the names of those that any request wants on the host.
        """
        targets, rows_of_results = [], []
        written: dict[int, Tensors] = {}
        left: set[str] = set()
        for name, dtype, result in results:
            start = stop = 0
            for index, request in enumerate(requests):
                if parts is not None:
                    start, stop = stop, stop + parts[index]
                names = wanted[index]
                if names is not None and name not in names:
                    continue
                own = result if parts is None else result[start:stop]
                target = request.output_target(name, tuple(own.shape), dtype)
                if target is None or not self._is_here(target.foreign):
                    left.add(name)
                    continue
                targets.append(self._tensor_at(target.foreign))
                rows_of_results.append(own)
                written.setdefault(index, {})[name] = target
        if targets:
            self._torch._foreach_copy_(targets, rows_of_results)
        return written, left

    def _copy_of(self, array: Any) -> Any:
        """An array of the host on the device."""
        brain = array.dtype == ml_dtypes.bfloat16
        if brain:  # numpy and torch cannot convert each other's bfloat16; two-byte integers can pass
            array = array.view(np.int16)
        # Torch has no read-only tensors and would warn.
        tensor = self._torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self._device.name)
        return tensor.view(self._torch.bfloat16) if brain else tensor

    def _is_here(self, foreign: Any) -> bool:
        """Whether a caller's memory is on the instance's own device."""
        number = getattr(foreign, "device_number", None)
        return number is None or self._device.name in ("cpu", f"cuda:{number}")

    def _tensor_at(self, foreign: Any) -> Any:
        """torch's tensor of a caller's memory. It owns nothing: only the address is remembered."""
        if not hasattr(foreign, "address") or not self._is_here(foreign):
            # Of another library, or a copy from another device.
            return self._torch.from_dlpack(foreign).to(self._device.name)
        key = (foreign.address, foreign.shape, foreign.dtype)
        tensor = self._tensors.get(key)
        if tensor is None:
            if len(self._tensors) >= _MAX_TENSORS:
                self._tensors.clear()
            tensor = self._tensors[key] = self._torch.as_tensor(foreign, device=self._device.name)
            if tensor.dtype == self._torch.int16 and foreign.dtype == ml_dtypes.bfloat16:
                tensor = self._tensors[key] = tensor.view(self._torch.bfloat16)
        return tensor
