"""A program: calls models as a gRPC client without a proxy, through the stock Triton client, until its input ends.

Writes one line of history per request to its output. Its bootstrap is in GRPC_XDS_BOOTSTRAP_CONFIG. Arguments: the
names of the models. Must never send a request twice by itself; what the routes retry is one request.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from bench.control.flights import VERSION_OUTPUTS, Crew
from bench.control.history import Answer, HistoryWriter
from isochrone.protocol.headers.version_pins import model_authority

#: Seconds between an answer and the next request of the same caller.
PAUSE = 0.01
CALLERS = 2


class _Lines(HistoryWriter):
    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def begin(self) -> None:
        pass

    def add(self, answer: Answer) -> None:
        sys.stdout.write(self._encoder.encode(answer).decode() + "\n")
        sys.stdout.flush()


async def _ask(crew: Crew, client: triton.InferenceServerClient, model: str) -> None:
    flight = crew.begin(model, "xds")
    given = triton.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), flight.value, dtype=np.float32))
    try:
        result = await client.infer(model, [given], client_timeout=20)
    except InferenceServerException as error:
        crew.failed(flight, f"{error.status() or ''} {error.message()}".strip())
        return
    names = ("Y", *VERSION_OUTPUTS[model])
    outputs = {name: float(array.flat[0]) for name in names if (array := result.as_numpy(name)) is not None}
    crew.answered(flight, result.get_response().model_version, outputs)


async def _call(model: str, over: asyncio.Event) -> None:
    crew = Crew("grpcio", _Lines())
    async with triton.InferenceServerClient(f"xds:///{model_authority(model)}") as client:
        while not over.is_set():
            await _ask(crew, client, model)
            await asyncio.sleep(PAUSE)


async def _main(models: list[str]) -> None:
    over = asyncio.Event()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    calls = asyncio.gather(*(_call(model, over) for model in models for _ in range(CALLERS)))
    await reader.read()
    over.set()
    await calls


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
