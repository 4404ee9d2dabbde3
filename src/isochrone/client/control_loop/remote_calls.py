"""The requests of a loop to its server: one task each, given up after a while; the end of each is reported by tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from isochrone.client.answers import Outputs
from isochrone.clock import MICROSECOND, SECOND
from isochrone.errors import IsochroneError


class RemoteModel(Protocol):
    """What a loop needs of ``isochrone.AsyncClient``."""

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
    ) -> Outputs: ...


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What every request of a loop has in common."""

    model: str
    outputs: Sequence[str] | None = None
    version: str = ""
    priority: int = 0
    headers: Mapping[str, str] | None = None


class RemoteCalls:
    def __init__(
        self,
        client: RemoteModel,
        options: RequestOptions,
        infer: int,
        late_answer: int,
        answered: Callable[[int, Outputs], None],
        failed: Callable[[int, str, str], None],
    ) -> None:
        self._client = client
        self._options = options
        # The server's deadline counts from the request's arrival there: it rejects what its own queue would make late,
        # and answers what the network made late, so that the round trip becomes known. The same in every tick, since
        # servers recognise equal requests.
        self._parameters = {"timeout": max(1, infer // MICROSECOND)}
        self._seconds = late_answer / SECOND
        self._answered = answered
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, tick: int, inputs: Mapping[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._call(tick, inputs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, tick: int, inputs: Mapping[str, Any]) -> None:
        options = self._options
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                outputs = await self._client.infer(
                    options.model,
                    inputs,
                    options.outputs,
                    options.version,
                    priority=options.priority,
                    parameters=self._parameters,
                    headers=options.headers,
                )
        except Exception as error:
            if limit.expired():
                self._failed(tick, "no_answer", f"no answer within {self._seconds * 1000:g} ms")
            else:
                code = error.code if isinstance(error, IsochroneError) else type(error).__name__
                self._failed(tick, code, str(error))
        else:
            self._answered(tick, outputs)

    async def close(self) -> None:
        """Give up all requests."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
