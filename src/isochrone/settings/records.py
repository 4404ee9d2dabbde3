"""Frozen dataclasses read from a file's data: each gets a ``Section`` made of its own fields, types and bounds.

A setting has the name of its field, with units for people: ``x_ns`` is written ``x_ms``, ``x_bytes`` is ``x_mb``. A
setting that the file leaves out keeps the value of the record that it is read over, so a model's record is read over
the defaults. A record in a mapping has the settings of the record around it where their names are the same. A record
with a field ``enabled`` may be given as true or false, and giving any of its other settings enables it. A record with a
field ``order`` may be given as a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, create_model, model_validator

from isochrone.settings.numbers import Scaled
from isochrone.settings.ranges import Range
from isochrone.settings.sections import Section

T = TypeVar("T")

_UNITS = {"_ns": ("_ms", 1e6, "milliseconds"), "_bytes": ("_mb", float(1 << 20), "MiB")}


class RecordSection(Section):
    """The settings of one record that a file gives."""

    #: Setting's name in the file → the record's field.
    record_fields: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, given: Any) -> Any:
        known = cls.record_fields
        if isinstance(given, bool) and "enabled" in known:
            return {"enabled": given}
        if isinstance(given, list) and "order" in known:
            return {"order": given}
        if isinstance(given, dict) and given and "enabled" in known and "enabled" not in given:
            return {"enabled": True, **given}
        return given


@cache
def section_of(record: type) -> type[RecordSection]:
    """The section that reads a dataclass."""
    hints = get_type_hints(record, include_extras=True)
    names: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for field in fields(record):
        name, scale, unit = field.name, 1.0, ""
        for ending, (written, factor, words) in _UNITS.items():
            if name.endswith(ending):
                name, scale, unit = name.removesuffix(ending) + written, factor, words
        names[name] = field.name
        # Never used: a setting that is not given keeps the record's value.
        settings[name] = (_setting(hints[field.name], scale, unit), None)
    made = create_model(f"{record.__name__}Section", __base__=RecordSection, **settings)
    made.record_fields = names
    return made


def read_over(base: T, section: RecordSection) -> T:
    """``base`` with the settings that the file gives."""
    changes: dict[str, Any] = {}
    mappings: dict[str, dict[str, RecordSection]] = {}
    for name in section.model_fields_set:
        field = section.record_fields[name]
        value = getattr(section, name)
        if isinstance(value, dict) and any(isinstance(each, RecordSection) for each in value.values()):
            mappings[field] = value
            continue
        if isinstance(value, RecordSection):
            value = read_over(getattr(base, field), value)
        changes[field] = tuple(value) if isinstance(value, list) else value
    read = replace(base, **changes)  # type: ignore[type-var]
    if not mappings:
        return read
    made = {field: _read_mapping(read, field, sections) for field, sections in mappings.items()}
    return replace(read, **made)  # type: ignore[type-var]


def _read_mapping(around: Any, field: str, sections: Mapping[str, RecordSection]) -> dict[str, Any]:
    """The records of a mapping in a record: those that the file gives, over those that there are."""
    record = get_args(get_type_hints(type(around))[field])[1]
    common = {each.name: getattr(around, each.name) for each in fields(record) if hasattr(around, each.name)}
    known: Mapping[str, Any] = getattr(around, field)
    return {
        **known,
        **{name: read_over(known.get(name) or record(**common), section) for name, section in sections.items()},
    }


def _setting(kind: Any, scale: float, unit: str) -> Any:
    """The type that pydantic checks a setting by."""
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return section_of(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return list.__class_getitem__(_setting(inner[0], scale, unit))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values: Any = dict.__class_getitem__((str, _setting(inner[1], scale, unit)))
        return Annotated[values, BeforeValidator(_empty_if_none)]
    bounds = Range()
    if origin is Annotated:
        kind, bounds = inner[:2]
    if kind in (int, float):
        return Annotated[kind, Scaled(bounds, scale, unit)]
    # 2 is a valid version; 1.10 is not, because YAML reads it as the number 1.1.
    return Annotated[str, BeforeValidator(_text_of_integer)] if kind is str else kind


def _empty_if_none(given: Any) -> Any:
    return {} if given is None else given


def _text_of_integer(given: Any) -> Any:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given
