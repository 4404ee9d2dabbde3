"""Triton's trace settings: validated, stored and returned, per model and global, as the trace extension describes.

A model inherits the global settings that it does not override. Clearing a model's setting restores the global one;
clearing a global one restores that of the command line. In the mode ``opentelemetry``, ``worker.tracing`` does what
they say; in the mode ``triton`` no file is written, and the settings exist for clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from isochrone.errors import InvalidArgument, Unsupported
from isochrone.observe.tracing.settings import EXPORT_OPTIONS, OPENTELEMETRY

_DEFAULTS: dict[str, list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_OFF = "OFF"
#: In the order in which they are shown.
_LEVELS = ("TIMESTAMPS", "TENSORS")
#: Triton keeps these in 32 bits.
_RANGES = {"trace_rate": (0, 2**32 - 1), "trace_count": (-1, 2**31 - 1), "log_frequency": (0, 2**32 - 1)}

Settings = dict[str, list[str]]


class TraceSettings:
    def __init__(self, initial: Mapping[str, list[str]] | None = None) -> None:
        """``initial`` are the settings of the command line, which a reset of the global settings restores."""
        self._initial = {**_DEFAULTS, **(initial or {})}
        for key, value in self._initial.items():
            if key not in ("trace_file", "trace_mode", *EXPORT_OPTIONS):
                self._initial[key] = _checked(key, value)
        if self._initial["trace_mode"] not in (["triton"], [OPENTELEMETRY]):
            raise InvalidArgument(
                f"--trace-config mode: expected triton or opentelemetry, given {self._initial['trace_mode'][-1][:50]!r}"
            )
        self._global = dict(self._initial)
        self._models: dict[str, Settings] = {}

    def apply(self, model_name: str, changes: Mapping[str, list[str] | None]) -> Settings:
        """Applies changes (None clears a key) and returns the effective settings. Raises without changing anything."""
        given = {key: self._read(key, value) for key, value in changes.items()}
        own = dict(self._models.get(model_name, {}) if model_name else self._global)
        for key, value in given.items():
            if value is not None:
                own[key] = value
            elif model_name:
                own.pop(key, None)
            else:
                own[key] = self._initial[key]
        settings = {**self._global, **own}
        is_on = given.get("trace_level") not in (None, [_OFF])
        if is_on and settings["trace_mode"] == ["triton"] and settings["trace_file"] == [""]:
            raise InvalidArgument(
                "Attempting to set invalid trace setting :trace file name is not given; "
                "start the server with --trace-config=triton,file=PATH"
            )
        if not model_name:
            self._global = own
        elif own:
            self._models[model_name] = own
        else:
            self._models.pop(model_name, None)
        return settings

    def has_own(self, model_name: str) -> bool:
        """Whether a model overrides any of the global settings."""
        return model_name in self._models

    def _read(self, key: str, value: list[str] | None) -> list[str] | None:
        if key in EXPORT_OPTIONS and key in self._initial:
            # Nor where the spans go.
            raise Unsupported(f"trace setting '{key}' can not be updated through network protocol")
        if key not in _DEFAULTS:
            raise InvalidArgument(f"trace setting '{key[:50]}': expected one of {', '.join(_DEFAULTS)}")
        if key == "trace_file":
            # A caller on the network must not choose the file.
            raise Unsupported("trace file location can not be updated through network protocol")
        if key == "trace_mode" and value not in (None, self._initial[key]):
            raise InvalidArgument(f"trace setting '{key}' cannot be changed while the server runs")
        return value if value is None or key == "trace_mode" else _checked(key, value)


def _checked(key: str, value: list[str]) -> list[str]:
    if key == "trace_level":
        return _levels(value)
    if len(value) != 1:
        raise InvalidArgument(f"expect only 1 value for '{key}': trace setting '{key}': expected one, given {value}")
    lowest, highest = _RANGES[key]
    wrong = f"Unable to parse '{key}'"
    if not _INTEGER.fullmatch(value[0]):
        raise InvalidArgument(f"{wrong}, got: {value[0][:50]}: trace setting '{key}': expected one integer")
    number = int(value[0])
    if not lowest <= number <= highest:
        raise InvalidArgument(f"{wrong}, value is out of range [ {lowest}, {highest} ], got: {number}")
    return [str(number)]


def _levels(value: list[str]) -> list[str]:
    if not value or not set(value) <= {_OFF, *_LEVELS}:
        expected = ", ".join((_OFF, *_LEVELS))
        raise InvalidArgument(f"trace setting 'trace_level': expected of {expected}, given {value}")
    if _OFF in value and len(value) > 1:
        raise InvalidArgument(f"Expect only one trace level 'OFF' is specified: trace setting 'trace_level': {value}")
    return [level for level in (_OFF, *_LEVELS) if level in value]
