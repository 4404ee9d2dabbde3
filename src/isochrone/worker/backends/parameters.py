"""The ``parameters`` of a model's configuration, read as the type a backend wants.

Backends call these while loading. Every refusal names the file, the key, what was expected and what was given. Keys
are looked up as written and in capitals, because Triton's backends use both spellings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from isochrone.errors import ConfigError

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

_TRUE = frozenset(("1", "true", "on", "yes"))
_FALSE = frozenset(("0", "false", "off", "no"))


def where(context: LoadContext) -> str:
    return f"{context.model_name}/config.pbtxt"


def text(context: LoadContext, key: str) -> str | None:
    """The parameter's value without surrounding space, or None when it is absent or empty."""
    value = context.parameters.get(key, context.parameters.get(key.upper(), "")).strip()
    return value or None


def refuse(context: LoadContext, key: str, expected: str, given: str) -> NoReturn:
    raise ConfigError(where(context), f'parameters["{key}"]', expected, repr(given))


def integer(context: LoadContext, key: str, default: int, *, minimum: int = 0) -> int:
    value = text(context, key)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        refuse(context, key, f"an integer >= {minimum}", value)
    if number < minimum:
        refuse(context, key, f"an integer >= {minimum}", value)
    return number


def boolean(context: LoadContext, key: str, default: bool) -> bool:
    value = text(context, key)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() not in _FALSE:
        refuse(context, key, "a boolean (1, 0, true or false)", value)
    return False


def choice(context: LoadContext, key: str, default: str, allowed: tuple[str, ...]) -> str:
    value = text(context, key)
    if value is None:
        return default
    if value.lower() not in allowed:
        refuse(context, key, "one of " + ", ".join(allowed), value)
    return value.lower()
