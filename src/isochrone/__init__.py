"""Isochrone: low-latency, deadline-first inference for fleets of agents.

``isochrone.serve`` serves Python code, ``isochrone.Client`` and ``isochrone.AsyncClient`` call servers
(docs/python-api.md), ``isochrone.ControlLoop`` runs the loop of an agent (docs/control-loop.md). They are imported when
they are first used: ``import isochrone`` itself imports nothing, and every part of the package may import its version
from here. Type checkers read ``__init__.pyi``.
"""

__version__ = "0.1.0"

_MODULES = {
    "AsyncClient": "isochrone.client.async_client",
    "Client": "isochrone.client.client",
    "ControlLoop": "isochrone.client.control_loop.loop",
    "Server": "isochrone.in_process.server",
    "model": "isochrone.in_process.options",
    "serve": "isochrone.in_process.serving",
}

__all__ = ["AsyncClient", "Client", "ControlLoop", "Server", "model", "serve"]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'isochrone' has no attribute '{name}'")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
