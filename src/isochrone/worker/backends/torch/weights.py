"""Frees the weights of a module at once.

Exported programs are full of reference cycles: without this, their tensors stay until the garbage collector has walked
every object of the process, and those of models that were loaded at the start are hidden from it.
"""

from __future__ import annotations

from typing import Any


def free_weights(module: Any) -> None:
    """Drops all tensors of a module that nobody calls any more; what is not a torch module owns its memory itself."""
    parts = getattr(module, "modules", None)
    if parts is None:
        return
    for part in parts():
        for held in (getattr(part, "_parameters", None), getattr(part, "_buffers", None)):
            if isinstance(held, dict):  # a scripted module has views instead; it has no cycles
                held.clear()
        attributes = vars(part)
        for name in [name for name, value in attributes.items() if hasattr(value, "untyped_storage")]:
            del attributes[name]  # a constant of an exported program
