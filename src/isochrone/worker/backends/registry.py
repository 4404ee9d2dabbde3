"""From the name in a model's configuration to the function that loads it.

The lifecycle asks here once per instance. A backend's runtime (onnxruntime, torch) is imported the first time a model
needs it, so a server without torch models never pays torch's import. Ensembles are not here: they run other models,
not a runtime.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from isochrone.errors import ConfigError
from isochrone.worker.backends.interface import Executable, LoadContext

Load = Callable[[LoadContext], Executable]

#: By the names that ``models.config`` brings every spelling of a backend down to.
MODULE_BY_BACKEND = {
    "onnx": "isochrone.worker.backends.onnx.backend",
    "python": "isochrone.worker.backends.python.backend",
    "torch": "isochrone.worker.backends.torch",
}


def loader(backend: str, where: str = "config.pbtxt") -> Load:
    """The load function of a backend; ``where`` names the file that asked for it, for the refusal."""
    module = MODULE_BY_BACKEND.get(backend)
    if module is None:
        raise ConfigError(where, "backend", "one of " + ", ".join(MODULE_BY_BACKEND), repr(backend))
    return cast(Load, importlib.import_module(module).load)
