"""Which of many inputs are worth keeping: each runs lines, in an order, that none of the kept ones runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from fuzz.target import Target

#: Steps from one line to the next in our code.
Steps = set[tuple[str, int, int]]

#: Of one target: how many new inputs are kept, and their size in bytes.
_MOST, _LARGEST = 25, 600


def selected(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Of ``inputs`` those that reach what the target's own do not, small ones first."""
    known: Steps = set()
    for data in target.inputs():
        known |= steps(target, data)
    kept: list[bytes] = []
    for data in sorted(inputs, key=lambda each: (len(each), each)):
        if len(kept) < _MOST and len(data) <= _LARGEST:
            found = steps(target, data)
            if not found <= known:
                known |= found
                kept.append(data)
    return kept


def steps(target: Target, data: bytes) -> Steps:
    """What one input runs; the promise may break."""
    found: Steps = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "/isochrone/" not in name:
            return None
        last = 0

        def line(inner: FrameType, kind: str, value: Any) -> Any:
            nonlocal last
            if kind == "line":
                found.add((name, last, inner.f_lineno))
                last = inner.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        target.check(data)
    except Exception:
        pass
    finally:
        sys.settrace(before)
    return found
