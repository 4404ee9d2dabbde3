"""An agent with a simulated link to its remote model, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from virtual_time import VirtualLoop

from isochrone.client.answers import Outputs
from isochrone.client.control_loop.loop import Action, ControlLoop
from isochrone.errors import Unavailable

#: What a link does with a request: seconds until the answer, None: nothing comes, or an error.
Link = Callable[[float], float | Exception | None]

REFUSED = Unavailable("cannot connect")


class SimulatedRemote:
    """Answers with the tick's own observation, after what the link takes at this time."""

    def __init__(self, loop: VirtualLoop, link: Link) -> None:
        self._loop = loop
        self._link = link
        self._began = loop.time()
        self.under_way = 0

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        version: str = "",
        *,
        priority: int = 0,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outputs:
        takes = self._link(self._loop.time() - self._began)
        if isinstance(takes, Exception):
            raise takes
        self.under_way += 1
        try:
            await asyncio.sleep(1e6 if takes is None else takes)
        finally:
            self.under_way -= 1
        return Outputs({"y": inputs["x"]})


class SimulatedAgent:
    """Its observation is the number of the tick, which a right answer repeats."""

    def __init__(self, loop: VirtualLoop, link: Link, **options: Any) -> None:
        self.virtual = loop
        self.actions: list[Action] = []
        self.times: list[float] = []
        self.late: list[tuple[int, Any, float]] = []
        self.local_starts: list[float] = []
        self.local_seconds = options.pop("local_seconds", 0.0005)
        self.remote = SimulatedRemote(loop, link)
        settings: dict[str, Any] = {
            "hz": 50,
            "sense_ms": 2,
            "infer_ms": 15,
            "act_ms": 3,
            "sense": self.sense,
            "act": self.act,
            "local": self.local,
            "fallback": {"y": -1},
            "on_late": lambda *given: self.late.append(given),
            "clock": loop.now_ns,
        }
        self.loop = ControlLoop(self.remote, "policy", **{**settings, **options})

    def sense(self) -> Mapping[str, Any]:
        return {"x": self.loop.tick}

    def act(self, action: Action) -> None:
        self.actions.append(action)
        self.times.append(self.virtual.time())

    def local(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.local_starts.append(self.virtual.time())
        self.virtual.pass_time(self.local_seconds)
        return {"y": inputs["x"]}

    @property
    def sources(self) -> list[str]:
        return [action.source for action in self.actions]
