"""How the process of an isolated torch model loads it: ``isolation.child_main`` imports this module.

The process calls what a load inside the worker calls. An error after which it cannot use its GPU any more ends it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isochrone.worker.backends.devices.errors import confirmed_device_error
from isochrone.worker.backends.interface import DeviceLost, Executable
from isochrone.worker.backends.isolation.sent_context import received_context
from isochrone.worker.backends.torch.backend import load_here

if TYPE_CHECKING:
    import msgspec

    from isochrone.protocol.messages import Tensors


class GuardedExecutable(Executable):
    """Reports the loss of the GPU as ``DeviceLost``, whatever the executable raised."""

    def __init__(self, executable: Executable, label: str, torch: Any) -> None:
        self._executable = executable
        self._label = label
        self._torch = torch
        self.captured_graphs = executable.captured_graphs

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        try:
            return self._executable.execute(inputs, outputs)
        except DeviceLost:
            raise
        except Exception as error:
            reason = confirmed_device_error(self._torch, error)
            if reason is None:
                raise
            raise DeviceLost(self._label, reason) from error

    def close(self) -> None:
        self._executable.close()


def load_in_child(model: msgspec.Raw) -> Executable:
    context = received_context(model)
    label = f"model '{context.model_name}' version {context.model_version}"
    executable = load_here(context)
    return GuardedExecutable(executable, label, importlib.import_module("torch"))
