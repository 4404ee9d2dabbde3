"""Makes a ``Fleet`` of a fleet.yaml. Errors name file, line, key, what was expected and what was given.

All errors are reported at once, one line each: ``examine`` leaves out what is wrong and looks at the rest, so that
``catalog`` can still say which directories and models are not there. The file is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from isochrone.control.fleet.checks import Problem, dotted
from isochrone.control.fleet.gateway_rules import rule_problems
from isochrone.control.fleet.spec import Fleet
from isochrone.control.fleet.text.leaving_out import follows_from, without
from isochrone.control.fleet.text.lines import Lines, parse_yaml
from isochrone.control.fleet.text.pydantic_problems import problems_of
from isochrone.errors import ConfigError

#: Times that wrong settings are left out to look at the rest: schema, what belongs together, names and ports.
_ROUNDS = 6


class _NoFile(ConfigError):
    """The usual slip at a command line: a plain sentence says more than a key."""

    def __init__(self, where: str) -> None:
        super().__init__(where, "file", "a fleet.yaml", "no such file")
        self.args = (f"{where}: no such file; name a fleet.yaml (isochrone init writes one)",)


class FleetError(ConfigError):
    """Everything that is wrong with one fleet. As a ``ConfigError`` it is the first of its problems."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        super().__init__(first.where, first.key, first.expected, first.given)
        self.problems = tuple(problems)
        self.args = ("\n".join(str(problem) for problem in problems),)


def fleet_error(problems: Sequence[Problem], where: str, lines: Lines | None) -> FleetError:
    """Problems by their paths, told by file and line."""
    errors = []
    for problem in problems:
        place = f"{where}:{lines.of(problem.path)}" if lines is not None else where
        errors.append(ConfigError(place, dotted(problem.path) or "file", problem.expected, problem.given))
    return FleetError(errors)


def load_fleet(path: Path | str) -> Fleet:
    """The fleet in a file."""
    return parse_fleet(read_text(path), str(path), Path(path).parent)


def read_text(path: Path | str) -> str:
    """The text of a fleet.yaml."""
    where = str(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FleetError([_NoFile(where)]) from None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise FleetError([ConfigError(where, "file", "a fleet.yaml", error.strerror or str(error))]) from None
    except OSError as error:
        raise FleetError([ConfigError(where, "file", "a readable file", error.strerror or str(error))]) from None
    except UnicodeDecodeError:
        raise FleetError([ConfigError(where, "file", "UTF-8 text", "bytes that are not")]) from None


@dataclass(frozen=True, slots=True)
class Examined:
    """A fleet, or what is wrong with it; then ``fleet`` is made of what is right, where that makes one."""

    fleet: Fleet | None
    problems: tuple[Problem, ...]
    lines: Lines

    def is_about_mistakes(self, problem: Problem) -> bool:
        """Whether a problem may only follow from what was left out."""
        return follows_from(problem, [each.path for each in self.problems])


def parse_fleet(text: str, where: str, directory: Path) -> Fleet:
    """The fleet in a text; ``where`` names it in errors, ``directory`` is what relative paths in it are of."""
    examined = examine(text, where)
    if examined.problems or examined.fleet is None:
        raise fleet_error(examined.problems, where, examined.lines)
    return examined.fleet


def examine(text: str, where: str) -> Examined:
    """Raises ``FleetError`` only for a text that is no YAML mapping."""
    try:
        data, lines = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark is not None else where
        given = " ".join(str(getattr(error, "problem", None) or error).split())
        raise FleetError([ConfigError(place, "file", "valid YAML", given)]) from None
    except ValueError as error:
        raise FleetError([ConfigError(where, "file", "valid YAML", str(error))]) from None
    if not isinstance(data, dict):
        given = "nothing" if data is None else repr(data)[:60]
        raise FleetError([ConfigError(where, "file", "a mapping with name, pools, models ...", given)])
    fleet, problems = _examined(data)
    return Examined(fleet, tuple(problems), lines)


def fleet_of(spec: dict[str, Any], where: str = "fleet") -> Fleet:
    """The fleet in a ``FleetRecord``, or in what an API was given."""
    return _checked(spec, where, None)


def with_workers(fleet: Fleet, pool: str, workers: int) -> Fleet:
    """The same with another number of workers in one pool."""
    spec = fleet.model_dump(mode="json")
    if pool not in spec["pools"]:
        known = ", ".join(fleet.pools) or "none"
        raise ConfigError(f"fleet {fleet.name}", f"pools.{pool}", f"a pool of the fleet ({known})", repr(pool))
    spec["pools"][pool]["workers"] = workers
    return fleet_of(spec, f"fleet {fleet.name}")


def _checked(data: dict[str, Any], where: str, lines: Lines | None) -> Fleet:
    fleet, problems = _examined(data)
    if problems or fleet is None:
        raise fleet_error(problems, where, lines)
    return fleet


def _examined(data: dict[str, Any]) -> tuple[Fleet | None, list[Problem]]:
    found: list[Problem] = []

    def add(problems: Sequence[Problem]) -> None:
        paths = [each.path for each in found]
        found.extend(each for each in problems if each not in found and not follows_from(each, paths))

    for _ in range(_ROUNDS):
        try:
            fleet = Fleet.model_validate(data)
        except ValidationError as error:
            problems = problems_of(error, Fleet)
            add(problems)
            remaining = without(data, [each.path for each in problems])
            if remaining is None:
                return None, found
            data = remaining
            continue
        add(rule_problems(fleet))
        return fleet, found
    return None, found
