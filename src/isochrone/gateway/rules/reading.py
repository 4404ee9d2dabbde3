"""Turns what a file says into frozen settings, by their own types and bounds; every error names file, key and value.

A setting's name in the file is its field's, with units for people: ``x_ns`` is written ``x_ms``, ``x_bytes`` is
``x_mb``. What is not given keeps the value of the settings it is read over, which is how defaults work. Where settings
have an ``enabled``, a bare true or false stands for it, and giving any other of them switches it on; where they have an
``order``, a bare list stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from isochrone.errors import ConfigError
from isochrone.gateway.ranges import Range
from isochrone.suggestions import suggestion

T = TypeVar("T")

_UNITS = {"_ns": ("_ms", 1e6, " of milliseconds"), "_bytes": ("_mb", float(1 << 20), " of MiB")}


def read(base: T, given: object, where: str, key: str) -> T:
    """``base`` with what is given of it in its place. ``where`` is the file, ``key`` the dotted path of ``given``."""
    settings: type = type(base)
    kinds = _settings(settings)
    if isinstance(given, bool) and "enabled" in kinds:
        given = {"enabled": given}
    elif isinstance(given, list) and "order" in kinds:
        given = {"order": given}
    table = as_mapping(given, where, key)
    changes: dict[str, Any] = {}
    if table and "enabled" in kinds and "enabled" not in table:
        changes["enabled"] = True
    for name, value in table.items():
        inner = f"{key}.{name}" if key else name
        if name not in kinds:
            raise ConfigError(where, inner, suggestion(name, list(kinds)), "an unknown key")
        field_name, kind = kinds[name]
        if is_dataclass(kind):
            changes[field_name] = read(getattr(base, field_name), value, where, inner)
        else:
            unit = next((unit for ending, unit in _UNITS.items() if field_name.endswith(ending)), ("", 1.0, ""))
            changes[field_name] = _value(kind, value, unit[1], unit[2], where, inner)
    return replace(base, **changes)  # type: ignore[type-var]


def as_mapping(given: object, where: str, key: str) -> dict[str, Any]:
    """A mapping with string keys; nothing at all is an empty one."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ConfigError(where, key or "file", "a mapping", _shown(given))
    for name in given:
        if not isinstance(name, str):
            raise ConfigError(where, key or "file", "keys that are strings", _shown(name))
    return given


@cache
def _settings(kind: type) -> dict[str, tuple[str, Any]]:
    """By its name in the file: a setting's field and type."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[str, Any]] = {}
    for field in fields(kind):
        name = field.name
        for ending, (written, _, _) in _UNITS.items():
            if name.endswith(ending):
                name = name.removesuffix(ending) + written
        found[name] = (field.name, hints[field.name])
    return found


def _value(kind: Any, given: object, scale: float, unit: str, where: str, key: str) -> Any:
    bounds = Range()
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)[:2]
    origin = get_origin(kind)
    if origin is tuple:
        if not isinstance(given, list):
            raise ConfigError(where, key, "a list", _shown(given))
        item = get_args(kind)[0]
        return tuple(_value(item, one, scale, unit, where, f"{key}[{index}]") for index, one in enumerate(given))
    if origin is not None and issubclass(origin, Mapping):
        item = get_args(kind)[1]
        table = as_mapping(given, where, key)
        if item is Any:
            return table
        return {name: _value(item, one, scale, unit, where, f"{key}.{name}") for name, one in table.items()}
    if kind is bool:
        if not isinstance(given, bool):
            raise ConfigError(where, key, "true or false", _shown(given))
        return given
    if kind is str:
        # 2 is a fine version; 1.10 is not, since it reads as the number 1.1.
        if isinstance(given, bool) or not isinstance(given, str | int):
            raise ConfigError(where, key, "a string", _shown(given))
        return str(given)
    return _number(kind, bounds, given, scale, unit, where, key)


def _number(kind: Any, bounds: Range, given: object, scale: float, unit: str, where: str, key: str) -> float:
    whole = kind is int and scale == 1.0
    expected = ("an integer" if whole else "a number") + unit
    if bounds != Range():
        expected += f" {bounds}" if bounds.most is not None else f", {bounds}"
    if isinstance(given, bool) or not isinstance(given, int if whole else int | float):
        raise ConfigError(where, key, expected, _shown(given))
    value: float = given * scale if scale != 1.0 else given
    if not math.isfinite(value) or not bounds.holds(value):
        raise ConfigError(where, key, expected, _shown(given))
    return round(value) if kind is int else float(value)


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:80]}…"
