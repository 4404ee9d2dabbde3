"""The text of a settings file, YAML or JSON, as data whose lines are known. Reads files, interprets nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from isochrone.errors import ConfigError
from isochrone.settings.lines import Lines, is_text, parse_yaml
from isochrone.settings.problems import SettingsError, quoted


class Document(NamedTuple):
    """The data of one file. ``where`` names the file in errors; ``lines`` is None for JSON."""

    where: str
    data: Any
    lines: Lines | None


def read_text(path: Path | str, expected: str) -> str:
    """The text of a file. ``expected`` describes the file in the error if there is none that can be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except IsADirectoryError:
        problem = ConfigError(str(path), "file", expected, "a directory")
        raise _plainly(problem, f"{path}: is a directory; name {expected}") from None
    except OSError as error:
        problem = ConfigError(str(path), "file", expected, error.strerror or str(error))
        raise _plainly(problem, f"{path}: {problem.given}; expected {expected}") from None
    except UnicodeDecodeError:
        raise SettingsError([ConfigError(str(path), "file", "UTF-8 text", "bytes that are not")]) from None


def parse_document(text: str, where: str) -> Document:
    """Parse JSON if the name ends in .json, because YAML forbids the tabs that JSON may contain; else YAML."""
    try:
        if where.endswith(".json"):
            data = json.loads(text, object_pairs_hook=_without_duplicates)
            if "\\u" in text and not is_text(json.dumps(data, ensure_ascii=False)):
                raise ValueError("half of a surrogate pair")
            return Document(where, data, None)
        return Document(where, *parse_yaml(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark is not None else where
        given = " ".join(str(getattr(error, "problem", None) or error).split())
        raise _unparsed(place, "valid YAML", given) from None
    except (ValueError, RecursionError) as error:
        raise _unparsed(where, "valid JSON" if where.endswith(".json") else "valid YAML", str(error)) from None


def _unparsed(place: str, expected: str, reason: str) -> SettingsError:
    return _plainly(ConfigError(place, "file", expected, reason), f"{place}: not {expected}: {reason}")


def _plainly(problem: ConfigError, text: str) -> SettingsError:
    """The error with a sentence as its text: there is no key to name."""
    problem.args = (text,)
    return SettingsError([problem])


def as_mapping(document: Document, expected: str) -> dict[str, Any]:
    """The document's data. ``expected`` describes the file in the error if it is empty or no mapping."""
    if isinstance(document.data, dict):
        return document.data
    given = "nothing" if document.data is None else quoted(document.data)
    raise SettingsError([ConfigError(document.where, "file", expected, given)])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} for a second time")
    return table
