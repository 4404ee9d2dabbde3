"""The demo's load: agents that send requests to the pipeline over HTTP and gRPC at random instants, without waiting for
earlier answers.

Every answer contains which version of the pipeline and of each stage it came from. Latency counts from the instant a
request was due, so a fleet that falls behind cannot hide it. The agents share the machine with the fleet.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from sightings import Sighting

MODEL = "pipeline"
#: Outputs of the pipeline that name a version.
_STAGES = ("preprocess_version", "detector_version")
#: Seconds that an agent waits for an answer. Long, because the demo checks that none is lost.
_PATIENCE = 5.0
_PIXELS = 64


class Failed(Exception):
    """The agent got no answer from a model."""


class Agent(ABC):
    """Sends requests on demand; several may be in flight."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @abstractmethod
    async def ask(self) -> tuple[float, tuple[str, ...]]:
        """The instant at which the request was sent, and the versions that answered it. Raises ``Failed``."""

    @abstractmethod
    async def close(self) -> None:
        """Close its connections."""


class HttpAgent(Agent):
    """HTTP/1.1 and JSON, with nothing but the standard library."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address)
        tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, _PIXELS], "data": list(range(_PIXELS))}
        body = json.dumps({"inputs": [tensor]}).encode()
        self._request = (
            f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: {address}\r\n"
            f"x-request-timeout-ms: {_PATIENCE * 1000:.0f}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self) -> tuple[float, tuple[str, ...]]:
        writer = None
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = self._idle.pop() if self._idle else await self._connect()
                sent = monotonic()
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or b"0"))
        except (OSError, EOFError, TimeoutError) as error:
            if writer is not None:
                writer.close()
            raise Failed(f"{type(error).__name__}: {error}") from None
        self._idle.append((reader, writer))
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Failed(body.decode("utf-8", "replace"))
        answer = json.loads(body)
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        return sent, (answer["model_version"], *(str(outputs[name][0]) for name in _STAGES))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


class GrpcAgent(Agent):
    """A stock Triton client."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address)
        self._client = triton.InferenceServerClient(address)
        pixels: Any = triton.InferInput("pixels", [1, _PIXELS], "UINT8")
        pixels.set_data_from_numpy(np.arange(_PIXELS, dtype=np.uint8).reshape(1, _PIXELS))
        self._inputs = [pixels]

    async def ask(self) -> tuple[float, tuple[str, ...]]:
        sent = monotonic()
        try:
            answer = await self._client.infer(MODEL, self._inputs, client_timeout=_PATIENCE)
        except triton.InferenceServerException as error:
            raise Failed(str(error)) from None
        stages = (str(answer.as_numpy(name)[0][0]) for name in _STAGES)
        return sent, (answer.get_response().model_version, *stages)

    async def close(self) -> None:
        await self._client.close()


class Load:
    """``rate`` requests a second on average (Poisson), over all agents in turn, from ``start`` to ``stop``."""

    def __init__(self, agents: Sequence[Agent], rate: float) -> None:
        self.seen: list[Sighting] = []
        self._agents = agents
        self._rate = rate
        self._asking: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sending = asyncio.create_task(self._send())

    async def stop(self) -> None:
        """Return when every request is answered or abandoned."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await asyncio.gather(*self._asking)
        await asyncio.gather(*(agent.close() for agent in self._agents))

    async def _send(self) -> None:
        draws = random.Random(1)
        due = monotonic()
        while True:
            for agent in self._agents:
                due += draws.expovariate(self._rate)
                await asyncio.sleep(max(0.0, due - monotonic()))
                task = asyncio.create_task(self._ask(agent, due))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask(self, agent: Agent, due: float) -> None:
        try:
            sent, versions = await agent.ask()
            self.seen.append(Sighting(agent.name, due, sent, monotonic(), versions))
        except Failed as failed:
            self.seen.append(Sighting(agent.name, due, due, monotonic(), failure=str(failed)))
