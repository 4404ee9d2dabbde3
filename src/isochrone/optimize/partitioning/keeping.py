"""The divisions that are kept beside the chosen one, within a bound of memory. Pure.

After the chosen one comes the whole model on the edge, which serves when the link is dead; then the fastest first. A
division that does not fit is left out, and smaller ones behind it may still fit. One that differs from another in its
compression alone shares the other's files, and takes no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isochrone.errors import InvalidArgument
from isochrone.models.divisions import EDGE


@dataclass(frozen=True, slots=True)
class Candidate:
    """``edge_bytes`` and ``core_bytes``: of its files on each tier."""

    division: str
    late_seconds: float
    edge_bytes: int
    core_bytes: int
    #: Divisions of one name here have the same files: they count once. "": it shares none.
    files: str = ""


def kept(candidates: Sequence[Candidate], chosen: str, most_bytes: int) -> list[str]:
    """Names of divisions, the chosen one first. ``most_bytes`` is the bound of each tier."""

    def rank(candidate: Candidate) -> tuple[bool, bool, float]:
        return candidate.division != chosen, candidate.division != EDGE, candidate.late_seconds

    edge = core = 0
    found: list[str] = []
    have: set[str] = set()
    for each in sorted(candidates, key=rank):
        if each.files and each.files in have:
            found.append(each.division)
        elif edge + each.edge_bytes <= most_bytes and core + each.core_bytes <= most_bytes:
            edge, core = edge + each.edge_bytes, core + each.core_bytes
            have.add(each.files)
            found.append(each.division)
        elif each.division == chosen:
            needed = max(each.edge_bytes, each.core_bytes)
            raise InvalidArgument(
                f"--keep-memory: expected at least the {needed:,} bytes of the chosen division, given {most_bytes:,}"
            )
    return found
