"""Makes a ``Fleet`` of a fleet.yaml. Errors name the file, line and key, what was expected and what was given.

All errors are reported at once, one line each: ``examine`` omits invalid settings and checks the rest, so that
``catalog`` can still report missing directories and models. The file is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isochrone.control.fleet.derived.gateway_rules import rule_problems
from isochrone.control.fleet.reading.leaving_out import follows_from, without
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import ConfigError
from isochrone.settings import documents
from isochrone.settings.expectations import problems_of
from isochrone.settings.lines import Lines
from isochrone.settings.problems import Problem, SettingsError, settings_error

#: Rounds of omitting invalid settings and checking the rest: schema, dependent settings, names and ports.
_ROUNDS = 6


def load_fleet(path: Path | str) -> Fleet:
    """The fleet in a file."""
    return parse_fleet(read_text(path), str(path), Path(path).parent)


def read_text(path: Path | str) -> str:
    """The text of a fleet.yaml."""
    if not Path(path).exists():
        missing = ConfigError(str(path), "file", "a fleet.yaml", "no such file")
        # A frequent mistake at the command line: a plain sentence says more than a key.
        missing.args = (f"{path}: no such file; name a fleet.yaml (isochrone init writes one)",)
        raise SettingsError([missing])
    return documents.read_text(path, "a fleet.yaml")


@dataclass(frozen=True, slots=True)
class Examined:
    """A fleet and its problems. With problems, ``fleet`` is made of the valid settings, if they suffice."""

    fleet: Fleet | None
    problems: tuple[Problem, ...]
    lines: Lines | None

    def is_about_mistakes(self, problem: Problem) -> bool:
        """Whether a problem may only follow from omitted settings."""
        return follows_from(problem, [each.path for each in self.problems])


def parse_fleet(text: str, where: str, directory: Path) -> Fleet:
    """The fleet in a text; ``where`` names it in errors, ``directory``: what relative paths refer to."""
    examined = examine(text, where)
    if examined.problems or examined.fleet is None:
        raise settings_error(examined.problems, where, examined.lines)
    return examined.fleet


def examine(text: str, where: str) -> Examined:
    """Raises ``SettingsError`` only for a text that is no YAML mapping."""
    document = documents.parse_document(text, where)
    fleet, problems = _examined(documents.as_mapping(document, "a mapping with name, pools, models ..."))
    return Examined(fleet, tuple(problems), document.lines)


def fleet_of(spec: dict[str, Any], where: str = "fleet") -> Fleet:
    """The fleet in the ``spec`` of a ``FleetRecord``."""
    return _checked(spec, where, None)


def with_workers(fleet: Fleet, pool: str, workers: int) -> Fleet:
    """The fleet with another number of workers in one pool."""
    spec = fleet.model_dump(mode="json")
    if pool not in spec["pools"]:
        known = ", ".join(fleet.pools) or "none"
        raise ConfigError(f"fleet {fleet.name}", f"pools.{pool}", f"a pool of the fleet ({known})", repr(pool))
    spec["pools"][pool]["workers"] = workers
    return fleet_of(spec, f"fleet {fleet.name}")


def _checked(data: dict[str, Any], where: str, lines: Lines | None) -> Fleet:
    fleet, problems = _examined(data)
    if problems or fleet is None:
        raise settings_error(problems, where, lines)
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
