"""An event loop whose clock jumps to the next timer: loops of seconds run in milliseconds, the same every time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing outside may be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 1000.0

    def time(self) -> float:
        return self._virtual

    def now_ns(self) -> int:
        return round(self._virtual * 1e9)

    def pass_time(self, seconds: float) -> None:
        """As a function does that computes for so long."""
        self._virtual += seconds

    def _run_once(self) -> None:
        waiting = [timer._when for timer in self._scheduled if not timer._cancelled]  # type: ignore[attr-defined]
        if not self._ready and waiting:  # type: ignore[attr-defined]
            self._virtual = max(self._virtual, min(waiting))
        super()._run_once()  # type: ignore[misc]


def run_virtually(loop: VirtualLoop, main: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
