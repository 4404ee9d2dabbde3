"""Which version directories a model has, and which of them its policy serves.

The repository asks this for every model at every scan. Version names are Triton's: positive decimal integers
without leading zeros. Everything else is left alone, but named, since a version that silently does not load
costs an afternoon.
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
# Directories that Triton's layout puts beside the versions.
_NEIGHBOURS = frozenset({"warmup", "initial_state", "configs", "__pycache__"})


@dataclass(frozen=True, slots=True)
class FoundVersions:
    present: tuple[int, ...]
    """Ascending."""
    ignored: tuple[str, ...]
    """Names that look as if a version was meant but are none, sorted."""


def version_number(name: str) -> int | None:
    """The version a directory name stands for, or None."""
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
    """The versions that ``policy`` picks from ``present``, ascending; the latest one where it says nothing.

    Those it names and that are not there are left out, as in Triton.
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


def _specific(wanted: list[int], ordered: list[int], where: str) -> tuple[int, ...]:
    if not wanted:
        raise ConfigError(where, "version_policy.specific.versions", "at least one version", "none")
    return tuple(version for version in ordered if version in wanted)


def require_versions(wanted: Sequence[int], present: Sequence[int], where: str) -> None:
    """Refuses a request for exactly these versions where one is not there."""
    for index, version in enumerate(wanted):
        if version not in present:
            there = ", ".join(map(str, sorted(present))) or "none"
            key = f"version_policy.specific.versions[{index}]"
            raise ConfigError(where, key, f"a version that is present (present: {there})", str(version))
