"""Typed access to the JSON files of a checkpoint. Errors name the file, the key, the expected and the given value."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from isochrone.errors import ConfigError

_REQUIRED: Any = object()
_LONGEST_VALUE = 200


class Fields:
    """One JSON object of a file. A key whose value is null counts as absent."""

    def __init__(self, where: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.where = where
        self._values = values
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def reject(self, key: str, expected: str, given: object = _REQUIRED) -> NoReturn:
        value = self._values.get(key) if given is _REQUIRED else given
        shown = "nothing" if value is None else json.dumps(value, default=str)
        raise ConfigError(self.where, self._prefix + key, expected, shown[:_LONGEST_VALUE])

    def integer(self, key: str, default: int = _REQUIRED, *, minimum: int = 1) -> int:
        value = self._values.get(key)
        if value is None and default is not _REQUIRED:
            return default
        if type(value) is not int or value < minimum:
            self.reject(key, f"an integer >= {minimum}")
        return value

    def number(self, key: str, default: float = _REQUIRED) -> float:
        value = self._values.get(key)
        if value is None and default is not _REQUIRED:
            return default
        # The largest float, since a larger integer is no float either.
        if type(value) is bool or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            self.reject(key, "a number above 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            self.reject(key, "true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self._values.get(key)
        if value is None and default is not _REQUIRED:
            return default
        if not isinstance(value, str):
            self.reject(key, "a string")
        return value

    def object(self, key: str) -> Fields:
        """The object under a key; an empty one if it is absent."""
        value = self._values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.reject(key, "an object")
        return Fields(self.where, value, f"{self._prefix}{key}.")

    def integers(self, key: str) -> tuple[int, ...]:
        """An integer or a list of them; empty if the key is absent."""
        value = self._values.get(key)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        if any(type(each) is not int or each < 0 for each in values):
            self.reject(key, "an integer >= 0, or a list of them")
        return tuple(values)


def read_fields(path: Path, *, required: bool) -> Fields:
    """The object in a JSON file; an empty one if the file is absent and not required."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if required:
            raise ConfigError(str(path), "file", "a file of a Hugging Face checkpoint", "no such file") from None
        return Fields(str(path), {})
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", str(error.strerror)) from error
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), "file", "JSON", str(error)) from error
    if not isinstance(values, dict):
        raise ConfigError(str(path), "file", "a JSON object", type(values).__name__)
    return Fields(str(path), values)
