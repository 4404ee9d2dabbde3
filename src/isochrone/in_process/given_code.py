"""What ``isochrone.serve`` was given: a function, a class or an object, behind one interface.

A function is called with one keyword argument per input. A class has ``infer`` and perhaps ``load`` and ``close``, as
the ``Model`` of a ``model.py``; each instance gets its own object. An object of such a class is used as it is.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError, InvalidArgument
from isochrone.models.repository.names import validate_model_name


@dataclass(frozen=True, slots=True)
class GivenCode:
    """One model's code."""

    #: Of the function or class.
    name: str
    #: Makes the object of one instance; its ``load`` is not called yet.
    construct: Callable[[], Any]
    #: Whether it gives many responses to one request.
    decoupled: bool
    #: Names of the inputs that it needs, and of those that it can take; None: any.
    needed: frozenset[str]
    taken: frozenset[str] | None
    #: All instances would use the same object.
    shared: bool
    #: Where its source is, for weights beside it; the working directory if it is in no file.
    directory: Path

    def load(self, context: Any) -> Any:
        """A loaded object, as the python backend uses it."""
        constructed = self.construct()
        if hasattr(constructed, "load"):
            constructed.load(context)
        return constructed

    def check_inputs(self, names: Sequence[str], where: str, key: str) -> None:
        """Raises unless the inputs fit a function's parameters."""
        if self.needed <= set(names) and (self.taken is None or set(names) <= self.taken):
            return
        expected = f"the parameters of {self.name}: {', '.join(sorted(self.taken or self.needed)) or 'none'}"
        raise ConfigError(where, key, expected, ", ".join(names) or "none")


def read_code(subject: Any) -> GivenCode:
    """Describes what was given, or raises ``ConfigError``."""
    if isinstance(subject, type):
        return _with_infer(subject.__name__, subject, subject.infer, subject) if hasattr(subject, "infer") else _no()
    if hasattr(subject, "infer"):
        kind = type(subject)
        return _with_infer(kind.__name__, lambda: subject, subject.infer, kind, shared=True)
    if callable(subject):
        return _function(subject)
    raise ConfigError("isochrone.serve", "model", _EXPECTED, f"a {type(subject).__name__}")


_EXPECTED = "a function, a class with a method infer(self, inputs), an object of one, or a list of them"


def _no() -> GivenCode:
    raise ConfigError("isochrone.serve", "model", _EXPECTED, "a class without infer")


def check_name(name: object) -> str:
    """A name that can be in a URL; raises ``ConfigError``."""
    try:
        validate_model_name(name if isinstance(name, str) else "")
    except InvalidArgument as error:
        raise ConfigError("isochrone.serve", "name", f"a name for the model ({error})", repr(name)) from None
    return str(name)


def _with_infer(
    name: str, construct: Callable[[], Any], infer: Any, source: type, *, shared: bool = False
) -> GivenCode:
    where = f"isochrone.serve({name})"
    if not callable(infer):
        raise ConfigError(where, "infer", "a method infer(self, inputs)", f"a {type(infer).__name__}")
    decoupled = _is_generator(infer, where, "infer")
    return GivenCode(name, construct, decoupled, frozenset(), None, shared, _directory(source))


def _function(function: Any) -> GivenCode:
    name = getattr(function, "__name__", type(function).__name__)
    where = f"isochrone.serve({name})"
    decoupled = _is_generator(function, where, "model")
    needed, taken = _parameters(function, where)
    adapter = _AsyncFunctionModel if inspect.isasyncgenfunction(function) else _FunctionModel
    return GivenCode(name, lambda: adapter(function), decoupled, needed, taken, False, _directory(function))


def _is_generator(code: Any, where: str, key: str) -> bool:
    if inspect.iscoroutinefunction(code):
        expected = "a plain function; to wait for something in many requests at once, an async generator (with yield)"
        raise ConfigError(where, key, expected, "a coroutine function (async def without yield)")
    return inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)


def _parameters(function: Any, where: str) -> tuple[frozenset[str], frozenset[str] | None]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return frozenset(), None
    named, needed, any_name = set(), set(), False
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            any_name = True
        elif each.kind is each.POSITIONAL_ONLY:
            raise ConfigError(where, each.name, "a parameter that can be given by name", "a positional-only parameter")
        elif each.kind is not each.VAR_POSITIONAL:
            named.add(each.name)
            if each.default is each.empty:
                needed.add(each.name)
    return frozenset(needed), None if any_name else frozenset(named)


def _directory(source: Any) -> Path:
    """Of the file with the source; of a notebook or a prompt, the working directory."""
    file = getattr(sys.modules.get(getattr(source, "__module__", None) or ""), "__file__", None)
    return Path(file).absolute().parent if file else Path.cwd()


class _FunctionModel:
    """Calls a function with the inputs by name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def infer(self, inputs: Mapping[str, Any]) -> Any:
        return self._function(**inputs)


class _AsyncFunctionModel:
    """Calls an async generator function with the inputs by name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    async def infer(self, inputs: Mapping[str, Any]) -> AsyncIterator[Any]:
        async with contextlib.aclosing(self._function(**inputs)) as responses:
            async for response in responses:
                yield response
