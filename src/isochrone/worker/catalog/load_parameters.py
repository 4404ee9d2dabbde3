"""Parameters of a load request.

``config`` and ``file:<version>/<name>`` are Triton's. ``versions`` is Isochrone's: it lists the versions to serve, and
the configuration on disk applies otherwise, so that a controller can add a version without knowing the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isochrone.errors import InvalidArgument
from isochrone.models.repository.versions import version_number

#: Prefix of a parameter that holds a file.
FILE_PREFIX = "file:"


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """Validated parameters; None: not given."""

    #: JSON that replaces config.pbtxt.
    config: str | None = None
    #: Files that replace the model's directory.
    files: Mapping[str, bytes] | None = None
    #: The versions to serve, instead of those that the configuration's version_policy selects.
    versions: tuple[int, ...] | None = None

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> LoadParameters:
        config = parameters.get("config")
        if config is not None and not isinstance(config, str):
            raise InvalidArgument(f"load parameter 'config': expected a JSON string, given {type(config).__name__}")
        files: dict[str, bytes] = {}
        for key, value in parameters.items():
            if key.startswith(FILE_PREFIX):
                if not isinstance(value, bytes):
                    raise InvalidArgument(f"load parameter '{key}': expected bytes, given {type(value).__name__}")
                files[key] = value
            elif key not in ("config", "versions"):
                raise InvalidArgument(
                    f"load parameter '{key[:100]}': expected 'config', 'versions' or 'file:<version>/<name>'"
                )
        versions = parameters.get("versions")
        return cls(config, files or None, None if versions is None else _version_numbers(versions))


def _version_numbers(given: Any) -> tuple[int, ...]:
    words = given.split(",") if isinstance(given, str) else [""]
    numbers = [version_number(word.strip()) for word in words]
    found = tuple(number for number in numbers if number is not None)
    if len(found) != len(numbers):
        raise InvalidArgument(f"load parameter 'versions': expected versions as in '1,2', given {str(given)[:100]!r}")
    return found
