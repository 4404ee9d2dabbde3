"""Files of /proc and /sys below a root. What is missing, unreadable or malformed is ``Unknown``, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from isochrone.doctor.facts import Unknown

Value = TypeVar("Value")
#: Most characters of a malformed file that a reason quotes.
_QUOTED = 40


class Tree:
    """``root`` is ``/``; elsewhere, a directory where another machine's /proc and /sys are, or a test's."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, path: str) -> str | Unknown:
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return Unknown(f"/{path}: {error.strerror or error}")

    def value(self, path: str, parse: Callable[[str], Value]) -> Value | Unknown:
        text = self.text(path)
        if isinstance(text, Unknown):
            return text
        try:
            return parse(text)
        except (ValueError, IndexError):
            start = text.strip()[:_QUOTED]
            return Unknown(f"/{path}: unexpected content '{start}'")

    def names(self, path: str) -> tuple[str, ...] | Unknown:
        """The names in a directory, sorted."""
        try:
            return tuple(sorted(each.name for each in (self.root / path).iterdir()))
        except OSError as error:
            return Unknown(f"/{path}: {error.strerror or error}")

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()
