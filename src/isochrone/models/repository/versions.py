"""The version directories of a model, and those that its version policy selects.

As in Triton, a version is a positive decimal integer without leading zeros. Other directories are ignored, but
reported: a version that silently does not load is hard to find.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError

_VERSION = re.compile(r"[1-9][0-9]*", re.ASCII)
_LARGEST = 2**63 - 1
# Other directories of Triton's layout.
_NEIGHBOURS = frozenset({"warmup", "initial_state", "configs", "__pycache__"})


@dataclass(frozen=True, slots=True)
class FoundVersions:
    present: tuple[int, ...]
    """Ascending."""
    ignored: tuple[str, ...]
    """Names that look like versions but are none, sorted."""


def version_number(name: str) -> int | None:
    """The version of a directory name, or None."""
    if len(name) > 19 or not _VERSION.fullmatch(name):
        return None
    number = int(name)
    return number if number <= _LARGEST else None


def find_versions(directory: Path) -> FoundVersions:
    present: list[int] = []
    ignored: list[str] = []
    try:
        for entry in directory.iterdir():
            number = version_number(entry.name)
            is_directory = entry.is_dir()
            if number is not None and is_directory:
                present.append(number)
            elif (
                number is not None
                or entry.name.isdigit()
                or (is_directory and entry.name not in _NEIGHBOURS and not entry.name.startswith("."))
            ):
                ignored.append(entry.name)
    except OSError as error:
        raise ConfigError(str(directory), "versions", "a readable directory", error.strerror or str(error)) from None
    return FoundVersions(tuple(sorted(present)), tuple(sorted(ignored)))


def versions_to_serve(
    policy: model_config_pb2.ModelVersionPolicy, present: Sequence[int], where: str
) -> tuple[int, ...]:
    """The versions in ``present`` that ``policy`` selects, ascending; without a policy the latest.

    As in Triton, missing versions are left out.
    """
    choice = policy.WhichOneof("policy_choice")
    ordered = sorted(present)
    if choice == "all":
        return tuple(ordered)
    if choice == "specific":
        return _specific(list(policy.specific.versions), ordered, where)
    count = policy.latest.num_versions if choice == "latest" else 1
    if count < 1:
        raise ConfigError(where, "version_policy.latest.num_versions", "an integer of at least 1", str(count))
    return tuple(ordered[-count:])


def _specific(requested: list[int], ordered: list[int], where: str) -> tuple[int, ...]:
    if not requested:
        raise ConfigError(where, "version_policy.specific.versions", "at least one version", "none")
    return tuple(version for version in ordered if version in requested)


def require_versions(requested: Sequence[int], present: Sequence[int], where: str) -> None:
    """Raises if one of the requested versions is missing."""
    for index, version in enumerate(requested):
        if version not in present:
            there = ", ".join(map(str, sorted(present))) or "none"
            key = f"version_policy.specific.versions[{index}]"
            raise ConfigError(where, key, f"a version that is present (present: {there})", str(version))
