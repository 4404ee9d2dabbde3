"""The options of a model that is served from code, and the decorator that sets them.

``@isochrone.model(...)`` and the arguments of ``isochrone.serve`` are the same options; an argument of ``serve`` wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, overload

from isochrone.errors import ConfigError
from isochrone.suggestions import suggestion

Subject = TypeVar("Subject")

#: The attribute of a decorated function or class.
_ATTRIBUTE = "__isochrone__"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What is served of one model, and how. A field that is None was not given."""

    name: str | None = None
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None
    example: Mapping[str, Any] | None = None
    batch: int | None = None
    deadline_ms: float | None = None
    instances: int | None = None
    parameters: Mapping[str, str] | None = field(default=None)

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    def over(self, other: ModelOptions) -> ModelOptions:
        """These options, and those of ``other`` where these are not given."""
        return replace(other, **{name: getattr(self, name) for name in self.given()})

    def check(self, where: str) -> None:
        """Raises for a number that cannot be."""
        for key, least in (("batch", 0), ("instances", 1)):
            value = getattr(self, key)
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(where, key, f"a whole number of at least {least}", repr(value))
        for key, value in (self.parameters or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise ConfigError(where, f"parameters[{key!r}]", "a string, as in config.pbtxt", repr(value))
        deadline = self.deadline_ms
        if deadline is not None and not (isinstance(deadline, int | float) and 0 < deadline < math.inf):
            raise ConfigError(where, "deadline_ms", "milliseconds above 0", repr(deadline))


def options_of(subject: object) -> ModelOptions:
    """The options that the decorator set; none: a model without it."""
    found = getattr(subject, _ATTRIBUTE, None)
    return found if isinstance(found, ModelOptions) else ModelOptions()


@overload
def model(subject: Subject, /) -> Subject: ...


@overload
def model(
    *,
    name: str | None = None,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    example: Mapping[str, Any] | None = None,
    batch: int | None = None,
    deadline_ms: float | None = None,
    instances: int | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Callable[[Subject], Subject]: ...


def model(subject: Any = None, /, **options: Any) -> Any:
    """Set the options of a function or a class for ``isochrone.serve``, which documents them.

    The function or class itself is returned: it can still be called, tested and subclassed. Works with and without
    parentheses::

        @isochrone.model(inputs={"x": "FP32[3]"}, batch=8)
        def double(x):
            return {"y": x * 2}

        isochrone.serve(double)
    """
    known = [each.name for each in fields(ModelOptions)]
    for key in options:
        if key not in known:
            raise TypeError(f"@isochrone.model: {key}: expected {suggestion(key, known, 'option')}")
    chosen = ModelOptions(**options)

    def mark(given: Subject) -> Subject:
        chosen.check(f"@isochrone.model of {getattr(given, '__name__', given)!s}")
        try:
            setattr(given, _ATTRIBUTE, chosen)
        except AttributeError:
            raise ConfigError(
                "@isochrone.model", "model", "a function or a class", f"a {type(given).__name__}"
            ) from None
        return given

    return mark if subject is None else mark(subject)
