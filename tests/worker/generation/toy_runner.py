"""A runner with toy models and requests that keep what they are answered: no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from queued_requests import RecordedRequest
from toy_model import ToyModel

from isochrone.clock import NEVER, now_ns
from isochrone.protocol.messages import Plan
from isochrone.worker.generation.engine import GenerationEngine
from isochrone.worker.generation.hangs import CHECKS
from isochrone.worker.generation.runner import GenerationRunner
from isochrone.worker.generation.settings import GenerationSettings
from isochrone.worker.statistics import ModelStatistics

SECONDS = 60


def text_tensor(text: str) -> Any:
    array = np.empty(1, np.object_)
    array[0] = text.encode()
    return array


class Answers(RecordedRequest):
    """A request of a client that reads nothing while ``is_slow``."""

    is_slow = False

    def __init__(self, plan: Plan, inputs: dict[str, Any], arrived: int, deadline: int) -> None:
        super().__init__(plan, inputs, arrived, deadline)
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_congested(self) -> bool:
        return self.is_slow

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def read(self) -> None:
        """The client reads again."""
        self.is_slow = False
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()

    @property
    def is_over(self) -> bool:
        return bool(self.answers) and not isinstance(self.answers[-1], dict)

    @property
    def responses(self) -> list[dict[str, Any]]:
        return [answer for answer in self.answers if isinstance(answer, dict)]

    @property
    def text(self) -> str:
        return "".join(answer["text_output"][0].decode() for answer in self.responses)


class Bench:
    """A runner of one version."""

    def __init__(self, *models: ToyModel, settings: GenerationSettings | None = None) -> None:
        settings = settings or GenerationSettings()
        self.models = models or (ToyModel(),)
        self.engines = [
            GenerationEngine(model, f"toy-1-{index}", settings.rules) for index, model in enumerate(self.models)
        ]
        for engine, model in zip(self.engines, self.models, strict=True):
            gate, model.gate = model.gate, None
            engine.warm()
            model.steps.clear()
            model.entered.clear()
            model.gate = gate
        self.in_flight = 0
        self.statistics = ModelStatistics("toy", "1")
        #: What the runner said of its readiness.
        self.readiness: list[bool] = []
        self.runner = GenerationRunner(
            "toy", self.engines, settings, self.statistics, self._ended, self.readiness.append
        )

    def _ended(self) -> None:
        self.in_flight -= 1

    def send(
        self,
        text: str | None = "hello",
        *,
        stream: bool = True,
        seconds: float = 0,
        priority: int = 0,
        kind: type[Answers] = Answers,
        **parameters: Any,
    ) -> Any:
        """``inputs``: further tensors by name; ``kind``: the class of the request."""
        inputs: dict[str, Any] = dict(parameters.pop("inputs", {}))
        if text is not None:
            inputs["text_input"] = text_tensor(text)
        inputs["stream"] = np.array([stream])
        outputs = parameters.pop("outputs", None)
        if "stop" in parameters:
            inputs["sampling_parameters"] = text_tensor(json.dumps({"stop": parameters.pop("stop")}))
        plan = Plan("toy", "", (), outputs, {"temperature": 0, **parameters}, priority=priority)
        now = now_ns()
        request = kind(plan, inputs, now, now + round(seconds * 1e9) if seconds else NEVER)
        self.in_flight += 1
        try:
            self.runner.submit(request)
        except BaseException:
            self.in_flight -= 1
            raise
        return request

    def check_stuck(self, seconds: float) -> None:
        """As the worker does, so many seconds from now."""
        for _ in range(CHECKS):
            self.runner.check_stuck(now_ns() + round(seconds * 1e9))

    @property
    def blocks_in_use(self) -> int:
        return sum(engine.scheduler.pool.in_use for engine in self.engines)

    def close(self) -> None:
        self.runner.fail_all()
        self.runner.release()
        for model in self.models:
            if model.gate is not None:
                model.gate.release(10_000)
        self.runner.close()
        # An engine whose step ran is not waited for.
        assert all(model.closed.wait(60) for model in self.models)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 (what it waits for is on another thread)
            await asyncio.sleep(0.001)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 2 * SECONDS))
