"""Triton's trace settings: kept, checked and shown, per model over global, as the trace extension describes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from isochrone.errors import InvalidArgument

_DEFAULTS: dict[str, list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")


class TraceSettings:
    def __init__(self, initial: Mapping[str, list[str]] | None = None) -> None:
        """``initial`` is the command line's: what a reset of the global settings goes back to."""
        self._initial = {**_DEFAULTS, **(initial or {})}
        for key, value in self._initial.items():
            if key not in ("trace_file", "trace_mode"):
                _check(key, value)
        self._global = dict(self._initial)
        self._models: dict[str, dict[str, list[str]]] = {}

    def apply(self, model_name: str, changes: Mapping[str, list[str] | None]) -> dict[str, list[str]]:
        """Applies changes (None resets a key) and returns the settings in force."""
        for key, value in changes.items():
            _check(key, value)
        target = self._models.get(model_name, {}) if model_name else self._global
        for key, value in changes.items():
            if value is not None:
                target[key] = list(value)
            elif model_name:
                target.pop(key, None)
            else:
                target[key] = list(self._initial[key])
        if model_name:
            self._models[model_name] = target
            if not target:
                del self._models[model_name]
        return {**self._global, **self._models.get(model_name, {})}


def _check(key: str, value: list[str] | None) -> None:
    if key not in _DEFAULTS:
        raise InvalidArgument(f"trace setting '{key[:50]}': expected one of {', '.join(_DEFAULTS)}")
    if key in ("trace_file", "trace_mode") and value is not None:
        # A path from the network is not a place to write to; Triton refuses it too since 2.31.
        raise InvalidArgument(f"trace setting '{key}' cannot be changed while the server runs")
    if value is None:
        return
    if key == "trace_level":
        unknown = [level for level in value if level not in _LEVELS]
        if unknown or not value:
            raise InvalidArgument(f"trace setting 'trace_level': expected of {', '.join(_LEVELS)}, given {value}")
    elif len(value) != 1 or not _INTEGER.fullmatch(value[0]):
        raise InvalidArgument(f"trace setting '{key}': expected one integer, given {value}")
