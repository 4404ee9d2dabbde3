"""Local models that run on a thread, raise, or take too long: what still answers in time is used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from isochrone.client.answers import Outputs
from isochrone.client.control_loop.loop import Action, ControlLoop
from isochrone.errors import Unavailable

Inputs = Mapping[str, Any]
#: Budgets so large that a busy machine does not decide the outcome.
LONG = {"hz": 1, "sense_ms": 10, "infer_ms": 980, "act_ms": 10}


class Remote:
    """Answers or fails after the given wait."""

    def __init__(self, wait: Callable[[], Any], error: Exception | None = None) -> None:
        self._wait = wait
        self._error = error

    async def infer(self, model: str, inputs: Inputs, *_: Any, **__: Any) -> Outputs:
        await self._wait()
        if self._error is not None:
            raise self._error
        return Outputs({"y": -2})


def acted_with_thread(remote: Any, local: Callable[[Inputs], Inputs]) -> list[Action]:
    """The actions of one tick in real time; which one it is does not depend on the time."""
    acted: list[Action] = []

    async def main() -> None:
        loop = ControlLoop(
            remote,
            "policy",
            sense=lambda: {"x": loop.tick},
            act=acted.append,
            local=local,
            local_in_thread=True,
            fallback={"y": -1},
            **LONG,  # type: ignore[arg-type]
        )
        async with loop:
            await loop.run(1)

    asyncio.run(main())
    return acted


def test_a_remote_failure_does_not_end_the_wait_for_a_local_run_on_a_thread() -> None:
    failed = threading.Event()

    async def fails() -> None:
        # The local run ends only after the event loop has seen the failure.
        asyncio.get_running_loop().call_later(0.01, failed.set)

    def local(inputs: Inputs) -> Inputs:
        assert failed.wait(5)
        return {"y": inputs["x"]}

    acted = acted_with_thread(Remote(fails, Unavailable("cannot connect")), local)
    assert [(action.source, action.outputs["y"]) for action in acted] == [("local", 0)]


def test_a_local_run_that_raises_on_a_thread_leaves_the_remote_answer() -> None:
    ended = threading.Event()

    async def waits() -> None:
        await asyncio.to_thread(ended.wait, 5)
        await asyncio.sleep(0.01)

    def local(inputs: Inputs) -> Inputs:
        ended.set()
        raise ValueError("no weights")

    acted = acted_with_thread(Remote(waits), local)
    assert [(action.source, action.outputs["y"]) for action in acted] == [("remote", -2)]
