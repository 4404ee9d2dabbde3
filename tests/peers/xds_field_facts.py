"""A program, for an environment with xds-protos: prints what the published messages say of the fields that it is given.

Input: a JSON object, message → names of fields. Output: message → field → [number, type, whether it is repeated, the
full name of its message]; null for what does not exist.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from typing import Any

ENUM, INT32 = 14, 5


def _message(name: str) -> Any:
    """Found in the modules of its package, of which each has a part."""
    parts = name.split(".")
    first = next(index for index, part in enumerate(parts) if part[0].isupper())
    package = importlib.import_module(".".join(parts[:first]))
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name.endswith("_pb2"):
            found: Any = importlib.import_module(module.name)
            try:
                for part in parts[first:]:
                    found = getattr(found, part)
            except AttributeError:
                continue
            return found.DESCRIPTOR
    return None


def _facts(message: Any, field_name: str) -> list[Any] | None:
    field = message.fields_by_name.get(field_name) if message is not None else None
    if field is None:
        return None
    kind = INT32 if field.type == ENUM else field.type
    return [field.number, kind, field.is_repeated, field.message_type.full_name if field.message_type else ""]


if __name__ == "__main__":
    asked: dict[str, list[str]] = json.load(sys.stdin)
    found = {name: {each: _facts(_message(name), each) for each in fields} for name, fields in asked.items()}
    json.dump(found, sys.stdout)
