"""Finds the entries of an access file that name a caller. Pure.

A file for thousands of agents names each of them: an exact name costs one lookup, however many there are. Only patterns
are tried one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class SubjectIndex:
    """The subjects, or patterns of them, of numbered entries."""

    def __init__(self, entries: Iterable[Iterable[str]]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._patterns: list[tuple[re.Pattern[str], int]] = []
        for number, subjects in enumerate(entries):
            for subject in subjects:
                if "*" in subject:
                    self._patterns.append((_expression(subject), number))
                else:
                    self._exact.setdefault(subject, []).append(number)

    def matching(self, subjects: Iterable[str]) -> list[int]:
        """The numbers of the entries that name one of ``subjects``, in order, each once."""
        found: set[int] = set()
        for subject in subjects:
            found.update(self._exact.get(subject, ()))
            found.update(number for pattern, number in self._patterns if pattern.fullmatch(subject))
        return sorted(found)


def _expression(pattern: str) -> re.Pattern[str]:
    # Only a star is special: the other characters of a file name's patterns occur in URIs.
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
