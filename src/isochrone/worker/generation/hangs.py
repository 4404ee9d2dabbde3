"""Whether an engine hangs: one step that does not end, seen several times. Pure.

A thread cannot be killed, so an engine that hangs keeps its thread, its device and its memory. The runner fails its
requests and gives it no others; if the step ends after all, the engine is used again.
"""

from __future__ import annotations

from isochrone.clock import SECOND
from isochrone.worker.generation.scheduling.admission import EngineLoad

#: Checks that find the same step. Time alone proves nothing: while the whole process was stopped, the engine could not
#: compute, and nobody could check either.
CHECKS = 5
#: Without ``execution_timeout_ms``: a step hangs after this many times the longest that is expected, but not before …
_TIMES = 50
#: … this has passed. Drivers and allocators stall for seconds and recover.
_LEAST_NS = 10 * SECOND


def step_limit(load: EngineLoad, configured_ns: int) -> int:
    """ns after which a step counts as hung; ``configured_ns``: 0: by what steps take."""
    return configured_ns or max(_LEAST_NS, _TIMES * longest_step(load))


def longest_step(load: EngineLoad) -> int:
    """ns of a step with everything that fits; 0: nothing is known."""
    limits = load.limits
    return load.costs.estimate(limits.rows, limits.blocks * limits.block_tokens, limits.prefill_tokens)


class HangWatch:
    """The steps of one engine, as checks see them."""

    __slots__ = ("_began", "_checks")

    def __init__(self) -> None:
        self._began = 0
        self._checks = 0

    def hangs(self, began: int, now: int, limit_ns: int) -> bool:
        """``began``: of the step that runs; 0: none does. Called about ten times a second."""
        self._checks = self._checks + 1 if began and began == self._began else 1
        self._began = began
        return bool(began) and self._checks >= CHECKS and now - began >= limit_ns
