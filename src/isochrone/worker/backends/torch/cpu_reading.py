"""Exported programs are read to the CPU, whatever device they were exported on.

torch reads each tensor to the device that the file names. Of a program that was exported on a GPU, the weights would
be on that GPU before anything has checked that they fit, perhaps on another GPU than the instance's; and a machine
without one could not read the file at all.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Before torch's own, of which the CPU's is the first with 10.
_PRIORITY = 5


class _Thread(threading.local):
    #: Whether this thread reads a program.
    is_reading = False


_THREAD = _Thread()
_LOCK = threading.Lock()


@contextmanager
def reading_to_cpu(torch: Any) -> Iterator[None]:
    """What torch reads of an exported program, on this thread, comes to the CPU.

    It changes torch's own modules, once, and leaves alone what is another in a later torch.
    """
    with _LOCK:
        _change_reader(torch)
    _THREAD.is_reading = True
    try:
        yield
    finally:
        _THREAD.is_reading = False


def _change_reader(torch: Any) -> None:
    # Example inputs and tensors of subclasses are pickled, and in older files the weights.
    if not any(deserializer is _left_on_cpu for _, _, deserializer in torch.serialization._package_registry):
        torch.serialization.register_package(_PRIORITY, _no_tag, _left_on_cpu)
    _change(torch, "torch._export.serde.serialize")
    _change(torch, "torch.export.pt2_archive._package")


def _change(torch: Any, module_name: str) -> None:
    """Makes a module read every device as the CPU: of weights, and those that are written into the graph."""
    try:
        module: Any = importlib.import_module(module_name)
    except ImportError:
        return
    original = getattr(module, "deserialize_device", None)
    if original is None or getattr(original, "reads_to_cpu", False):
        return

    def deserialize_device(device: Any) -> Any:
        found = original(device)
        return torch.device("cpu") if _THREAD.is_reading and found.type != "meta" else found

    deserialize_device.reads_to_cpu = True  # type: ignore[attr-defined]
    module.deserialize_device = deserialize_device


def _no_tag(storage: Any) -> None:
    """What is saved is torch's to name."""


def _left_on_cpu(storage: Any, location: str) -> Any:
    return storage if _THREAD.is_reading and location != "meta" else None
