"""When the moves of a plan are done, by a stated model of loads. Pure.

- A lost worker is noticed when its lease has run out.
- A load takes a second for the process and its warm-up, and the model's bytes at one GiB per second.
- A worker loads one model at a time, since loads share its disk and its bus. Workers load side by side.
- A load waits for the moves before it on the same worker; an unload waits for the loads of the same model before it,
  and then drains for a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isochrone.control.placement.plan import ADD, Move

LEASE_SECONDS = 5.0
START_SECONDS, BYTES_PER_SECOND, DRAIN_SECONDS = 1.0, float(2**30), 1.0


def finished(moves: Sequence[Move], sizes: Mapping[str, int]) -> list[float]:
    """Seconds after the plan at which each move is done."""
    free: dict[str, float] = {}
    loaded: dict[str, float] = {}
    found = []
    for move in moves:
        if move.action == ADD:
            at = free.get(move.worker, 0.0) + START_SECONDS + sizes.get(move.model, 0) / BYTES_PER_SECOND
            loaded[move.model] = max(at, loaded.get(move.model, 0.0))
        else:
            at = max(free.get(move.worker, 0.0), loaded.get(move.model, 0.0)) + DRAIN_SECONDS
        free[move.worker] = at
        found.append(at)
    return found


def back_after(moves: Sequence[Move], sizes: Mapping[str, int], models: frozenset[str]) -> float:
    """Seconds from the loss of a worker until each of its models that is loaded again has its replica."""
    times = [at for move, at in zip(moves, finished(moves, sizes), strict=True) if _loads(move, models)]
    return LEASE_SECONDS + max(times) if times else 0.0


def _loads(move: Move, models: frozenset[str]) -> bool:
    return move.action == ADD and move.model in models
