"""pydantic's validation errors as ``Problem``: path in the file, expected value and given value. Pure."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from isochrone.settings.problems import Path, Problem, quoted
from isochrone.settings.validator_errors import SEVERAL, WRONG
from isochrone.suggestions import choice, suggestion

_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """All errors, in the order of the file's sections."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        if detail["type"] == SEVERAL:
            found += detail["ctx"]["problems"]
        else:
            found.append(_problem(detail, root))
    return found


def _problem(detail: ErrorDetails, root: type[BaseModel]) -> Problem:
    error, context = detail["type"], detail.get("ctx", {})
    path, kind = _place(root, detail["loc"])
    given = quoted(detail["input"])
    if error == "extra_forbidden":
        return Problem(path, suggestion(str(path[-1]), _keys(_place(root, detail["loc"][:-1])[1])), "an unknown key")
    if error == "missing":
        return Problem(path, "a value", "nothing")
    if error == WRONG:
        return Problem(path, context["expected"], context.get("given", given))
    if error == "literal_error":
        return Problem(path, choice(detail["input"], _words(context["expected"].replace(" or ", ", "))), given)
    if error == "union_tag_not_found":
        return Problem((*path, context["discriminator"].strip("'")), choice("", list(_tags(kind))), "nothing")
    if error == "union_tag_invalid":
        tag = context["tag"]
        return Problem((*path, context["discriminator"].strip("'")), choice(tag, list(_tags(kind))), repr(tag))
    if error == "too_short":
        return Problem(path, f"at least {context['min_length']}", "none" if not detail["input"] else given)
    if error in _BOUNDS:
        words, name = _BOUNDS[error]
        of = "" if error in ("greater_than", "less_than") else "of "
        return Problem(path, f"a number {of}{words} {context[name]:g}", given)
    if error in _TYPES:
        expected = _TYPES[error]
        if error == "string_type" and isinstance(detail["input"], int | float):
            expected += f" (in quotes: '{detail['input']}')"
        if "[key]" in detail["loc"]:
            return Problem((*path[:-1], str(path[-1])), f"a key that is {expected}", given)
        return Problem(path, expected, "nothing" if detail["input"] is None else given)
    message = detail["msg"]
    return Problem(path, message[:1].lower() + message[1:], given)


def _words(listed: str) -> list[str]:
    """pydantic lists literals as ``'fast', 'strict'``."""
    return [word for word in listed.replace("'", "").split(", ") if word]


def _place(root: Any, location: tuple[str | int, ...]) -> tuple[Path, Any]:
    """The path in the file, and the type that is expected there; None: not known.

    pydantic adds the tags of unions to an error's location, and a mark for keys of mappings.
    """
    path: list[str | int] = []
    kind = root
    for step in location:
        if step == "[key]":
            continue
        if (tags := _tags(kind)) and step in tags:
            kind = tags[str(step)]
            continue
        path.append(step)
        kind = _inner(kind, step)
    return tuple(path), kind


def _tags(kind: Any) -> dict[str, Any]:
    """The members of a tagged union by their tags; empty: it is none."""
    members = [member for member in _members(kind) if _is_section(member)]
    if len(members) < 2:
        return {}
    return {
        tag: member
        for member in members
        for field in member.model_fields.values()
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
        for tag in get_args(field.annotation)
        if isinstance(tag, str)
    }


def _members(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _inner(kind: Any, step: str | int) -> Any:
    """The type behind one step of a path: a section's field, or the values of a mapping or list."""
    for member in _members(kind):
        if _is_section(member):
            fields = {field.alias or name: field.annotation for name, field in member.model_fields.items()}
            return fields.get(str(step))
        origin, inner = get_origin(member), [each for each in get_args(member) if each is not Ellipsis]
        if isinstance(origin, type) and inner:
            return inner[-1]
    return None


def _keys(kind: Any) -> list[str]:
    """The keys of a section, as the file writes them."""
    for member in _members(kind):
        if _is_section(member):
            return [field.alias or name for name, field in member.model_fields.items()]
    return []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
