"""The backends by name.

A backend's module, and with it its runtime (onnxruntime, torch, openvino, treelite), is imported when the first model
needs it: a server without torch models never imports torch. Ensembles are not backends: they run other models.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from isochrone.errors import ConfigError
from isochrone.worker.backends.interface import Executable, LoadContext

Load = Callable[[LoadContext], Executable]

#: By the short names of ``isochrone.models.configuration.backends``.
MODULE_BY_BACKEND = {
    "onnx": "isochrone.worker.backends.onnx.backend",
    "python": "isochrone.worker.backends.python.backend",
    "torch": "isochrone.worker.backends.torch.backend",
    "openvino": "isochrone.worker.backends.openvino.backend",
    "fil": "isochrone.worker.backends.fil.backend",
    "identity": "isochrone.worker.backends.identity",
    "generation": "isochrone.worker.backends.transformer.backend",
}


def loader(backend: str, where: str = "config.pbtxt") -> Load:
    """The load function of a backend; ``where`` is the configuration's file, for the error."""
    module = MODULE_BY_BACKEND.get(backend)
    if module is None:
        raise ConfigError(where, "backend", "one of " + ", ".join(MODULE_BY_BACKEND), repr(backend))
    return cast(Load, importlib.import_module(module).load)
