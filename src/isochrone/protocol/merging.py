"""Answers of many workers made into one: repository indexes and statistics, as JSON and as protobuf messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from isochrone.protocol.control_json import is_repeated

#: Not added up: the latest counts.
_LATEST = frozenset(("last_inference",))
_INDEX_ORDER = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


def merge_indexes(indexes: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per model and version: ready if it is ready anywhere; a digest only where all agree."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for index in indexes:
        for row in index:
            key = (str(row.get("name", "")), str(row.get("version", "")))
            known = rows.get(key)
            if known is None:
                rows[key] = dict(row)
                continue
            if _rank(row.get("state")) < _rank(known.get("state")):
                rows[key] = {**row}
                known, row = rows[key], known
            if "digest" in known and known["digest"] != row.get("digest", known["digest"]):
                known["digest"] = "differs"
    return [rows[key] for key in sorted(rows)]


def _rank(state: Any) -> int:
    return _INDEX_ORDER.index(state) if state in _INDEX_ORDER else len(_INDEX_ORDER)


def merge_statistics(answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counts and durations added up per model and version."""
    models: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in answers:
        for model in answer.get("model_stats", []):
            key = (str(model.get("name", "")), str(model.get("version", "")))
            models[key] = _add(models[key], model) if key in models else model
    return {"model_stats": [models[key] for key in sorted(models)]}


def _add(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    total = dict(one)
    for name, value in other.items():
        known = total.get(name)
        if known is None:
            total[name] = value
        elif isinstance(value, dict) and isinstance(known, dict):
            total[name] = _add(known, value)
        elif isinstance(value, list) and isinstance(known, list):
            total[name] = _add_rows(known, value)
        elif name in _LATEST:
            total[name] = max(known, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            total[name] = known + value
    return total


def _add_rows(known: list[Any], rows: list[Any]) -> list[Any]:
    """Rows of one batch size, or memory of one kind, belong together."""
    by_key: dict[Any, Any] = {_row_key(row): row for row in known}
    for row in rows:
        key = _row_key(row)
        by_key[key] = _add(by_key[key], row) | _identity(row) if key in by_key else row
    return list(by_key.values())


def _row_key(row: Any) -> Any:
    return tuple(_identity(row).items()) if isinstance(row, dict) else repr(row)


def _identity(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("batch_size", "type", "id") if name in row}


def merge_messages(messages: Sequence[Any], key: tuple[str, ...]) -> Any:
    """The first repeated field's entries of all messages, one per key, numbers added up (statistics, index)."""
    merged = type(messages[0])()
    field = merged.DESCRIPTOR.fields[0].name
    rows: dict[tuple[Any, ...], Any] = {}
    for message in messages:
        for row in getattr(message, field):
            identity = tuple(getattr(row, name) for name in key)
            known = rows.get(identity)
            if known is None:
                rows[identity] = row
            elif hasattr(row, "state"):
                if _rank(row.state) < _rank(known.state):
                    rows[identity] = row
            else:
                _add_message(known, row)
    getattr(merged, field).extend(rows[identity] for identity in sorted(rows))
    return merged


def _add_message(known: Any, other: Any) -> None:
    for field in other.DESCRIPTOR.fields:
        name = field.name
        value = getattr(other, name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            mine = getattr(known, name)
            for entry in value:
                _add_message(mine[entry], value[entry])
        elif field.message_type is not None and is_repeated(field):
            _add_repeated(getattr(known, name), value)
        elif field.message_type is not None:
            if other.HasField(name):
                _add_message(getattr(known, name), value)
        elif name in _LATEST:
            setattr(known, name, max(getattr(known, name), value))
        elif _is_amount(field) and not is_repeated(field) and name not in ("batch_size", "id"):
            setattr(known, name, getattr(known, name) + value)


def _is_amount(field: Any) -> bool:
    return field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_BOOL, field.CPPTYPE_ENUM)


def _add_repeated(known: Any, rows: Any) -> None:
    for row in rows:
        for mine in known:
            if getattr(mine, "batch_size", None) == getattr(row, "batch_size", None) and hasattr(row, "batch_size"):
                _add_message(mine, row)
                break
        else:
            known.add().CopyFrom(row)
