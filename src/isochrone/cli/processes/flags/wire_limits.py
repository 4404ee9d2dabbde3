"""The flag ``--limit NAME=VALUE``: limits of the wire."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from isochrone.errors import InvalidArgument
from isochrone.settings.wire_limits import WireLimits

_DEFAULTS = WireLimits()


def parse_limits(given: list[str], **flags: float) -> WireLimits:
    """The limits of other flags, overridden by ``--limit NAME=VALUE``."""
    values: dict[str, Any] = dict(flags)
    for word in given:
        name, _, text = word.partition("=")
        default = getattr(_DEFAULTS, name, None)
        if default is None:
            known = ", ".join(field.name for field in fields(WireLimits))
            raise InvalidArgument(f"--limit {word}: no limit is called {name!r}; known limits are {known}")
        try:
            values[name] = type(default)(text)
        except ValueError:
            raise InvalidArgument(f"--limit {word}: expected a number, given {text!r}") from None
    try:
        return WireLimits(**values)
    except ValueError as error:
        raise InvalidArgument(f"--limit: {error}") from None
