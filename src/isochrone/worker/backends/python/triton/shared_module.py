"""``triton_python_backend_utils`` for code outside of a model's directory: libraries that several models share, and
``importlib.import_module``.

Each model instance has a module of its own, which its files import. Others find this one in ``sys.modules`` while a
Triton model is loaded. What depends on a model, such as ``InferenceRequest``, it takes from the model whose code is
calling: the nearest frame of a model's file says which. Nothing here runs for a model that imports the module itself.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType, ModuleType
from typing import Any

from isochrone.worker.backends.python.triton.utilities import MODULE_NAME, MODULE_NAMES, SHARED_NAMES

#: The modules of loaded models, by the package of the model's files.
_modules: dict[str, ModuleType] = {}
_lock = threading.Lock()


class _SharedModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = _of_caller(sys._getframe(1))
        if module is None:
            raise AttributeError(
                f"{MODULE_NAME}.{name} belongs to one model, and this code was not called by the code of one: pass"
                f" {name} on from model.py"
            )
        return getattr(module, name)


_shared = _SharedModule(MODULE_NAME, "Triton's python backend utilities, for code that models share.")
vars(_shared).update(SHARED_NAMES)


def add(package: str, module: ModuleType) -> None:
    """A model is being loaded; ``module``: its own."""
    with _lock:
        _modules[package] = module
        for name in MODULE_NAMES:
            sys.modules.setdefault(name, _shared)


def remove(package: str) -> None:
    with _lock:
        _modules.pop(package, None)
        for name in MODULE_NAMES:
            if not _modules and sys.modules.get(name) is _shared:
                del sys.modules[name]


def _of_caller(frame: FrameType | None) -> ModuleType | None:
    """On a thread that has no frame of a model, the module of the only model, as in a process of its own."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _modules:
            return _modules[package]
        frame = frame.f_back
    with _lock:
        return next(iter(_modules.values())) if len(_modules) == 1 else None
