"""The way of a large input from the callers' memory to the device.

What lies in pinned memory of a caller is copied from there by the device itself. The rest is gathered into the slot's
pinned memory, and copied from there. Both happen on the stream for copies, while the batch before computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from isochrone.devices.cuda.client_pages import CLIENT_PAGES
from isochrone.worker.backends.tensors.gathering import gather

if TYPE_CHECKING:
    import numpy as np

    from isochrone.devices.cuda.host_ranges import HostRange
    from isochrone.protocol.messages import Tensor
    from isochrone.worker.backends.torch.gpu.device import Device

#: Smaller tensors are gathered by the host: a copy of the device takes some microseconds, however small it is.
DIRECT_BYTES = 32 * 1024


def copy_rows(
    device: Device, stream: Any, arrays: list[Any], views: tuple[Tensor, Any, Any], held: list[HostRange]
) -> None:
    """Starts the copies of a batch's rows to the device; ``views`` are a slot's, for all rows.

    Adds to ``held`` what the device reads in the callers' memory: the caller of this function releases it once the
    copies are complete. ``stream`` is the current one.
    """
    array, host, on_device = views
    direct = _pinned(device, arrays, array.dtype, held) if CLIENT_PAGES else []
    if not any(direct):
        gather(arrays, array)
        on_device.copy_(host, non_blocking=True)
        return
    address, width = on_device.data_ptr(), array.itemsize
    runs = list(_runs(arrays, direct))
    copies = [
        (address + start * width, direct[first], (stop - start) * width)
        for first, _, start, stop in runs
        if direct[first]
    ]
    # The device copies these while the host gathers the others.
    device.start_copies(copies, stream)
    flat, flat_host, flat_device = array.reshape(-1), host.view(-1), on_device.view(-1)
    for first, last, start, stop in runs:
        if not direct[first]:
            gather(arrays[first:last], flat[start:stop].reshape(-1, *array.shape[1:]))
            flat_device[start:stop].copy_(flat_host[start:stop], non_blocking=True)


def _pinned(device: Device, arrays: list[Any], dtype: np.dtype[Any], held: list[HostRange]) -> list[int]:
    """The address of each large array in pinned memory; 0: it has to be gathered."""
    given = [(_address(array), array.nbytes) if _is_readable(array, dtype) else (0, 0) for array in arrays]
    found = CLIENT_PAGES.hold(given, device.index, held)
    return [address if pinned else 0 for (address, _), pinned in zip(given, found, strict=True)]


def _is_readable(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether an array is large, and the device can read it as it is, if its memory is pinned."""
    return bool(array.nbytes >= DIRECT_BYTES and array.dtype == dtype and array.flags.carray)


def _address(array: Any) -> int:
    """Of a writable array in the order of C, as those in shared memory are."""
    if array.dtype.kind == "V":  # bfloat16, which has no form as a buffer
        return int(array.__array_interface__["data"][0])
    # Three times as fast as numpy's own ways.
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


def _runs(arrays: Sequence[Any], direct: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Arrays that are copied together: those between two direct ones, or a direct one. With their elements."""
    first = start = 0
    while first < len(arrays):
        last, stop = first + 1, start + arrays[first].size
        while not direct[first] and last < len(arrays) and not direct[last]:
            stop += arrays[last].size
            last += 1
        yield first, last, start, stop
        first, start = last, stop
