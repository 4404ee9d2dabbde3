"""Which cores are the server's, and which the generators'."""

from __future__ import annotations

from collections.abc import Sequence


def split_cores(cores: Sequence[int], server: int) -> tuple[list[int], list[int]]:
    """The server's cores, and those of the generators; with too few for both, all share them."""
    if len(cores) < server + 2:
        return list(cores), list(cores)
    return list(cores[:server]), list(cores[server:])
