"""Omits invalid settings from a file's data, so that the rest can be checked at the same time. Pure.

An omitted setting gets its default, which may not fit the rest: ``follows_from`` recognises problems that this may have
caused. Reporting an error late costs another attempt; reporting an error that does not exist costs trust.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from isochrone.settings.problems import Path, Problem

#: Sections whose processes share the machine's ports and names.
_PROCESSES = ("control", "gateways", "pools")
_PORTS = ("listen", "first_port", "metrics_port")
#: In place of a name that is missing or wrong.
_NAME = "unnamed"


def without(data: dict[str, Any], paths: Sequence[Path]) -> dict[str, Any] | None:
    """The data without the settings at these paths; None: one of the paths does not exist."""
    remaining = copy.deepcopy(data)
    for path in paths:
        if path[:1] == ("name",):
            remaining["name"] = _NAME
        elif not _leave_out(remaining, path):
            return None
    return remaining


def _leave_out(data: Any, path: Path) -> bool:
    """Omit the section of a missing setting; of a list, omit the whole list."""
    holder, place = data, []
    for step in path:
        found = _key(holder, step)
        if found is None:
            break
        place.append(found)
        holder = holder[found]
    if not place:
        return False
    target = data
    for step in place[:-1]:
        target = target[step]
    del target[place[-1]]
    return True


def _key(holder: Any, step: str | int) -> Any:
    """The key as the file has it: ``7`` is a number there and a string in a path. Lists are not descended into."""
    if not isinstance(holder, dict):
        return None
    return next((key for key in holder if key == step or str(key) == str(step)), None)


def follows_from(problem: Problem, left_out: Sequence[Path]) -> bool:
    """Whether a problem may exist only because of an omission."""
    if not left_out:
        return False
    path = problem.path
    for other in left_out:
        whole = len(other) == 1 or (len(other) == 2 and other[0] in ("pools", "models", "gateways"))
        # The settings of a process depend on each other, those of a model do not.
        depth = min(3 if other[0] in ("models", "defaults") else 2, len(other), len(path))
        if path[:depth] == other[:depth]:
            return True
        # Other settings may refer to a whole pool or model that was omitted.
        if whole and (other[0] in path or path[0] in ("models", "defaults")):
            return True
        # Models inherit from the defaults.
        if other[0] == "defaults" and path[0] == "models":
            return True
        if other[0] in _PROCESSES and path[0] in _PROCESSES and (path[-1] in _PORTS or len(path) < 3):
            return True
    return False
