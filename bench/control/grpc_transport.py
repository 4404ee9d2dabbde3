"""The stock asyncio gRPC client, tritonclient.grpc.aio: what users run.

It is expensive in CPU, so it carries a small part of a load. It sends no deadline, which the server would enforce; the
client alone limits its waiting. Must never let the client library send a request twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from bench.control.flights import CONNECTION, VERSION_OUTPUTS, Crew, Flight, Transport
from isochrone.gateway.traffic.affinity import AGENT_HEADER

#: gRPC would otherwise send again by itself what the server may not have seen, and wait longer and longer between
#: attempts to connect: a client that backs off for two minutes cannot observe a gateway that is back in one second.
_CHANNEL = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class GrpcTransport(Transport):
    """One channel to each gateway."""

    def __init__(self, crew: Crew, landed: Callable[[Flight, str], None], gateways: list[str]) -> None:
        self._crew = crew
        self._landed = landed
        self._gateways = gateways
        self._channels: dict[str, Any] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        self._channels = {
            gateway: triton.InferenceServerClient(gateway, channel_args=_CHANNEL) for gateway in self._gateways
        }

    def send(self, flight: Flight) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(flight))
        self._tasks[flight.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(flight.number, None))

    def give_up(self, flight: Flight) -> None:
        task = self._tasks.get(flight.number)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    async def _ask(self, flight: Flight) -> None:
        given = triton.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(np.full((1, 1), flight.value, dtype=np.float32))
        try:
            headers = {AGENT_HEADER: flight.agent} if flight.agent else None
            result = await self._channels[flight.gateway].infer(flight.model, [given], headers=headers)
        except InferenceServerException as error:
            said = f"{error.status() or ''} {error.message()}".strip()
            # Errors of the channel itself, without an answer of the server.
            silent = "UNAVAILABLE" in said and any(word in said for word in ("connect", "Socket", "reset", "GOAWAY"))
            error_text = f"{CONNECTION}: {said}" if silent else said
            self._crew.failed(flight, error_text)
            self._landed(flight, error_text)
            return
        names = ("Y", *VERSION_OUTPUTS[flight.model])
        outputs = {
            name: float(array.flat[0]) for name in names if (array := result.as_numpy(name)) is not None and array.size
        }
        self._crew.answered(flight, result.get_response().model_version, outputs)
        self._landed(flight, "")
