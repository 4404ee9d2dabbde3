"""Settings that differ between two fleets, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isochrone.control.fleet.settings.quantities import bytes_text
from isochrone.settings.sections import Section


def differences(
    before: Section, after: Section, only: Sequence[str] | None = None, except_for: Sequence[str] = ()
) -> list[str]:
    """``slo.deadline_ms: 50 → 20``, for every key that differs."""
    found = []
    for name, field in type(after).model_fields.items():
        if (only is not None and name not in only) or name in except_for:
            continue
        was, now = getattr(before, name), getattr(after, name)
        if was == now:
            continue
        key = field.alias or name
        if isinstance(was, Section) and isinstance(now, Section):
            found += [f"{key}.{text}" for text in differences(was, now)]
        else:
            found.append(f"{key}: {_shown(name, was)} → {_shown(name, now)}")
    return found


def _shown(name: str, value: Any) -> str:
    if name == "memory":
        return bytes_text(value) if value else "not stated"
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(_shown("", item) for item in value)
    if isinstance(value, Section):
        return _shown("", value.model_dump(exclude_unset=True)) if value.model_fields_set else "defaults"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(key, item)}" for key, item in value.items())
    return str(value)


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} … {names[-1]} ({len(names)} in all)"
