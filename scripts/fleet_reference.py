"""Writes docs/reference/fleet.md, the reference of fleet.yaml, from the JSON schema.

    python scripts/fleet_reference.py docs/reference/fleet.md

Every section of the schema becomes a heading with a table of its keys. Descriptions, types, bounds and defaults come
from the schema alone: correct a wrong sentence in the types that the schema is made of.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isochrone.control.fleet.settings.schema import fleet_schema

_HEAD = """\
# fleet.yaml: reference

All keys of fleet.yaml. `make docs` generates this page from the [JSON schema](../fleet.schema.json), which editors can
use as well. The [guide to fleet.yaml](../fleet.md) explains how the keys work together, with examples.

| type | written as |
|---|---|
| bytes | `200MiB`, `2GiB`, `1.5GB`, or a number of bytes |
| milliseconds, seconds | `50ms`, `2s`, `5min`, or a number in the named unit |
| share | `5%` or `0.05` |
| address | `host:port`; port 0 selects a free port |
| name | a-z, 0-9 and `-` |
| version | a positive integer, or `latest` |
| rules | keys of the gateway's [rules file](../gateway.md#the-rules-file) |

Paths are relative to the file. "–" means that the key is not set by default.
"""

#: Stands for the name in a mapping of named sections.
_NAME = "NAME"
_MODELS = f"models.{_NAME}"
#: The type of a string by a part of its pattern; "" is a time, whose unit the key names.
_PATTERNS = {"%": "share", "iB": "bytes", "µs": "", "latest": "version", r":\d": "address", "a-z0-9": "name"}


def page(schema: dict[str, Any]) -> str:
    """The whole page."""
    return _HEAD + "".join(_sections("", schema, schema, {}))


def _sections(path: str, section: dict[str, Any], schema: dict[str, Any], shown: dict[str, set[str]]) -> Iterator[str]:
    """A section and those in it, depth first. ``shown`` has the keys of the sections so far, by path."""
    yield f"\n## {f'`{path}`' if path else 'Top level'}\n\n{_sentence(section['description'])}\n"
    keys = set(section["properties"])
    if path == "defaults":
        missing = ", ".join(f"`{key}`" for key in sorted(shown[_MODELS] - keys))
        yield f"\nThe keys of [`{_MODELS}`](#{_MODELS.replace('.', '').lower()}) except {missing}.\n"
        return
    shown[path] = keys
    yield "\n| key | type | default | meaning |\n|---|---|---|---|\n"
    yield from (f"| {' | '.join(row)} |\n" for row in _rows(section, schema))
    for key in sorted(keys, key=lambda key: _order(list(section["properties"]), key)):
        many, inner = _inner(section["properties"][key], schema)
        if inner is not None:
            place = f"{path}.{key}" if path else key
            yield from _sections(f"{place}.{_NAME}" if many else place, inner, schema, shown)


def _order(keys: list[str], key: str) -> float:
    """The schema's order, except that ``defaults`` follows ``models``, whose keys it has."""
    return keys.index("models") + 0.5 if key == "defaults" else keys.index(key)


def _inner(value: dict[str, Any], schema: dict[str, Any]) -> tuple[bool, dict[str, Any] | None]:
    """Whether it is a mapping by name, and the section that the value is or holds."""
    if reference := value.get("$ref"):
        return False, schema["$defs"][reference.rpartition("/")[2]]
    for option in value.get("anyOf", ()):
        if "$ref" in option:
            return _inner(option, schema)
    named = list(value.get("patternProperties", {}).values())
    if isinstance(value.get("additionalProperties"), dict):
        named.append(value["additionalProperties"])
    for option in named:
        return True, _inner(option, schema)[1]
    return False, None


def _rows(section: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for key, value in section["properties"].items():
        many, inner = _inner(value, schema)
        meaning = value.get("description") or (inner or {}).get("description", "")
        default = "" if inner is not None else _default(value, key in section.get("required", ()))
        yield f"`{key}`", _type(key, value, many, inner), default, _sentence(meaning)


def _type(key: str, value: dict[str, Any], many: bool, inner: dict[str, Any] | None) -> str:
    if inner is not None:
        return "sections by name" if many else "section"
    if "enum" in value:
        return " or ".join(f"`{option}`" for option in value["enum"])
    options = [option for option in _options(value) if option.get("type") != "null"]
    text = next(
        (_PATTERNS[part] for option in options for part in _PATTERNS if part in option.get("pattern", "")), None
    )
    if text is not None:
        return text or ("milliseconds" if key.endswith("_ms") else "seconds")
    kinds = [option.get("type") for option in options]
    if kinds == ["string", "array"]:
        return "path or list of paths"
    if kinds == ["array", ["object", "null"]]:
        return "list or rules"
    if kinds == ["array"]:
        return f"list of {_plural(_type(key, value['items'], False, None))}"
    if kinds == [["object", "null"]]:
        return "rules" if "options" not in key else "options"
    return {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}[str(kinds[0])] + (
        _bounds(options[0])
    )


def _options(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternatives, of alternatives too."""
    if "anyOf" not in value:
        yield value
    for option in value.get("anyOf", ()):
        yield from _options(option)


def _plural(word: str) -> str:
    return {"text": "texts"}.get(word, f"{word}s")


def _bounds(value: dict[str, Any]) -> str:
    least, most = value.get("minimum"), value.get("maximum")
    if "exclusiveMinimum" in value:
        return f", above {value['exclusiveMinimum']}"
    if least is not None and most is not None:
        return f", {least} to {most}"
    return "" if least is None else f", at least {least}"


def _default(value: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    given = value.get("default")
    if given is None or given in ("", [], {}):
        return "–"
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, float):
        return f"`{given:f}`".rstrip("0`") + "`"
    if isinstance(given, list):
        return ", ".join(f"`{each}`" for each in given)
    return f"`{given}`" if isinstance(given, str) else f"`{json.dumps(given)}`"


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(fleet_schema()), encoding="utf-8")


if __name__ == "__main__":
    main()
