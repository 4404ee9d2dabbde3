"""The errors of a settings file: each has the path of its key, the expected value and the given one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isochrone.errors import ConfigError
from isochrone.settings.lines import Lines

Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """One wrong setting."""

    path: Path
    expected: str
    given: str


class SettingsError(ConfigError):
    """All errors of one file, a line each. As a ``ConfigError`` it is the first of them."""

    def __init__(self, errors: Sequence[ConfigError], problems: Sequence[Problem] = ()) -> None:
        first = errors[0]
        super().__init__(first.where, first.key, first.expected, first.given)
        self.errors = tuple(errors)
        #: The same by their paths; empty if the file could not be parsed.
        self.problems = tuple(problems)
        self.args = ("\n".join(str(error) for error in errors),)


def settings_error(problems: Sequence[Problem], where: str, lines: Lines | None) -> SettingsError:
    """The error for the problems of the file ``where``, in the order of its lines; without ``lines``, it names none."""
    if lines is not None:
        problems = sorted(problems, key=lambda problem: lines.of(problem.path))
    errors = []
    for problem in problems:
        place = f"{where}:{lines.of(problem.path)}" if lines is not None else where
        errors.append(ConfigError(place, dotted(problem.path) or "file", problem.expected, problem.given))
    return SettingsError(errors, problems)


def dotted(path: Path) -> str:
    """``models.detector.pools[0]``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def quoted(value: object) -> str:
    """A value as an error shows it: its first 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
