"""pydantic's errors in our words: path, what was expected, what was given. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from isochrone.control.fleet.checks import Problem
from isochrone.suggestions import suggestion

#: A value is quoted up to here.
_QUOTED = 60
_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """All of them, in the order of the file's sections."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        if detail["type"] == "fleet":
            found += detail["ctx"]["problems"]
        else:
            found.append(_problem(detail, root))
    return found


def _problem(detail: ErrorDetails, root: type[BaseModel]) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    path = tuple(step for step in detail["loc"] if step != "[key]")
    is_key = len(path) < len(detail["loc"])
    given = _quoted(detail["input"])
    if kind == "extra_forbidden":
        return Problem(path, suggestion(str(path[-1]), _keys(root, path[:-1])), "an unknown key")
    if kind == "missing":
        return Problem(path, "a value", "nothing")
    if kind == "expected":
        return Problem(path, context["expected"], context.get("given", given))
    if kind == "literal_error":
        return Problem(path, _literal(context["expected"], detail["input"]), given)
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return Problem(path, f"a number of {words} {context[name]:g}", given)
    if kind in _TYPES:
        expected = _TYPES[kind]
        if kind == "string_type" and isinstance(detail["input"], int | float):
            expected += f" (in quotes: '{detail['input']}')"
        if is_key:
            return Problem((*path[:-1], str(path[-1])), f"a key that is {expected}", given)
        return Problem(path, expected, "nothing" if detail["input"] is None else given)
    message = detail["msg"]
    return Problem(path, message[:1].lower() + message[1:], given)


def _literal(expected: str, given: object) -> str:
    """pydantic names them as ``'fast' or 'strict'``."""
    words = [word for word in expected.replace("'", "").replace(" or ", ", ").split(", ") if word]
    near = get_close_matches(str(given), words, n=1, cutoff=0.6)
    return f"{', '.join(words[:-1])} or {words[-1]}" + (f" (did you mean '{near[0]}'?)" if near else "")


def _keys(root: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys of the section at a path, as the file writes them."""
    kind: Any = root
    for step in path:
        section = _section(kind)
        if section is None:
            # A mapping by name: its values' type.
            kind = get_args(kind)[-1] if get_args(kind) else None
            continue
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        kind = fields[str(step)].annotation
    section = _section(kind)
    return [field.alias or name for name, field in section.model_fields.items()] if section is not None else []


def _section(kind: Any) -> type[BaseModel] | None:
    """A section's class, also of one that may be left out."""
    for one in (kind, *(() if getattr(kind, "__origin__", None) is dict else get_args(kind))):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
