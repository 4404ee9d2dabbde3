"""The errors that validators of settings raise; ``expectations`` turns them into problems of the file."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import PydanticCustomError

from isochrone.settings.problems import Problem

#: Types of the errors, by which ``expectations`` recognises them.
WRONG, SEVERAL = "expected", "problems"


def wrong(expected: str, given: str | None = None) -> PydanticCustomError:
    """The error of one value. ``given`` replaces the value in the message."""
    context = {"expected": expected} if given is None else {"expected": expected, "given": given}
    return PydanticCustomError(WRONG, "expected {expected}", context)


def several(problems: Sequence[Problem]) -> PydanticCustomError:
    """The error of a whole section: problems by their paths in the file."""
    return PydanticCustomError(SEVERAL, "{count} problems", {"count": len(problems), "problems": problems})
