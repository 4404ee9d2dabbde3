"""Typed access to the ``parameters`` of a model's configuration.

Backends call these functions while loading. Errors name the file, the key, the expected and the given value. Keys are
looked up as written and in capitals, because Triton's backends use both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from isochrone.errors import ConfigError

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

_TRUE = frozenset(("1", "true", "on", "yes"))
_FALSE = frozenset(("0", "false", "off", "no"))


def where(context: LoadContext) -> str:
    """The file of the configuration, for errors."""
    return context.config_source or str(context.directory.parent / "config.pbtxt")


def text(context: LoadContext, key: str) -> str | None:
    """The value of a parameter without surrounding space; None if it is absent or empty."""
    value = context.parameters.get(key, context.parameters.get(key.upper(), "")).strip()
    return value or None


def reject(context: LoadContext, key: str, expected: str, given: str) -> NoReturn:
    raise ConfigError(where(context), f'parameters["{key}"]', expected, repr(given))


def integer(context: LoadContext, key: str, default: int, *, minimum: int = 0) -> int:
    value = text(context, key)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        reject(context, key, f"an integer >= {minimum}", value)
    if number < minimum:
        reject(context, key, f"an integer >= {minimum}", value)
    return number


def boolean(context: LoadContext, key: str, default: bool) -> bool:
    value = text(context, key)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() not in _FALSE:
        reject(context, key, "a boolean (1, 0, true or false)", value)
    return False


def choice(context: LoadContext, key: str, default: str, allowed: tuple[str, ...]) -> str:
    value = text(context, key)
    if value is None:
        return default
    if value.lower() not in allowed:
        reject(context, key, "one of " + ", ".join(allowed), value)
    return value.lower()
