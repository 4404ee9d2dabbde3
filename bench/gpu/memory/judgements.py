"""What ``bench.gpu.memory`` expects of its figures. Pure but for the readings and the clock that it is given."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

MIB = 1 << 20
_SIZE = r"[\d,.]+ (?:MiB|bytes)"
#: The refusal of the memory ledger, with its figures; an error out of the middle of a load has none of them.
_REFUSAL = re.compile(rf"does not fit on \S+: it needs {_SIZE} .*{_SIZE} of {_SIZE} are free")
_LEDGER = re.compile(r'^isochrone_device_memory_bytes\{.*\bholding="(\w+)".*\} (\S+)$', re.MULTILINE)
#: The reading stands still if it has not become lower for so long.
_STILL_SECONDS = 0.1
#: Least share of the cycles in the time that is left.
_CYCLES_SHARE = 0.6


def settled(
    used: Callable[[], int],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, float]:
    """The lowest reading until it stands still, and how long it took to come."""
    began = since = clock()
    lowest = used()
    while clock() - began < seconds and clock() - since < _STILL_SECONDS:
        sleep(0.02)
        if (now := used()) < lowest:
            lowest, since = now, clock()
    return lowest, since - began


def cycles_seconds(left: float, others: float) -> float:
    """The time of the cycles, where the other parts take ``others``: most of what is left, however little it is."""
    return max(left - others, _CYCLES_SHARE * left)


def growth(after: Sequence[int], most_bytes: int) -> dict[str, Any]:
    """From the end of the second cycle to the end of the last: the first one brings what stays."""
    if len(after) < 3:
        return {"cycles": len(after), "problem": f"{len(after)} cycles: expected 3 at least to see a growth"}
    bytes_grown = after[-1] - after[1]
    problem = ""
    if bytes_grown > most_bytes:
        problem = f"{bytes_grown / MIB:+,.1f} MiB after {len(after)} cycles: expected {most_bytes / MIB:g} MiB at most"
    return {"cycles": len(after), "growth_bytes": bytes_grown, "problem": problem}


def ledger_bytes(page: str) -> dict[str, int]:
    """What instances hold by the worker's own ledger, by what it is held for, from its metrics page.

    Memory in use that grows while this does not is none that a load asked for.
    """
    found: dict[str, int] = {}
    for holding, size in _LEDGER.findall(page):
        found[holding] = found.get(holding, 0) + int(float(size))
    return found


def refusal_problem(error: str) -> str:
    """Of the load of a model that does not fit."""
    if not error:
        return "the model was loaded: expected a refusal"
    return "" if _REFUSAL.search(error) else f"expected a refusal with its figures, given: {error}"


def fault_problem(healthy: str, answers: Sequence[str], after: str) -> str:
    """``healthy``: the error before any illegal access; ``answers``: those to them; ``after``: the error later."""
    if healthy:
        return f"the model fails before any illegal access: {healthy}"
    if not all(answers):
        return "an illegal access was answered as if it were legal"
    return f"the faulty model does not serve again: {after}" if after else ""
