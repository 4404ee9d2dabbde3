"""Our client beside tritonclient, and beside the HTTP libraries that it could have been built on.

One worker (``isochrone.serve`` in a process of its own) serves a function that returns its input. Every client sends
the same tensor: one request at a time, then from several threads or tasks. Rounds alternate between the clients, in an
order that changes; the table has the median of the rounds.

    python -m bench.client.transports [--seconds 1] [--rounds 5] [--floats 64]
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio

import isochrone
from bench.ports import free_ports

HOST = "127.0.0.1"
IN_FLIGHT = 8
SERVER = """
import sys, isochrone
def identity(x):
    return {"y": x}
isochrone.serve(identity, inputs={"x": "FP32[%s]" % sys.argv[1]}, outputs={"y": "FP32[%s]" % sys.argv[1]},
                http_port=int(sys.argv[2]), grpc_port=int(sys.argv[3]), metrics_port=0)
"""

Call = Callable[[], Any]


@dataclass
class Figures:
    medians_us: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def one_at_a_time(call: Call, seconds: float) -> float:
    """The median in µs."""
    durations = []
    ends = time.perf_counter() + seconds
    while (before := time.perf_counter()) < ends:
        call()
        durations.append(time.perf_counter() - before)
    return statistics.median(durations) * 1e6


def from_threads(calls: list[Call], seconds: float) -> float:
    """Requests per second."""
    counts = [0] * len(calls)
    ends = time.perf_counter() + seconds

    def run(index: int) -> None:
        while time.perf_counter() < ends:
            calls[index]()
            counts[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


async def asynchronous(call: Callable[[], Awaitable[Any]], seconds: float) -> tuple[float, float]:
    """The median in µs at one in flight, and requests per second at ``IN_FLIGHT``."""
    durations = []
    ends = time.perf_counter() + seconds
    while (before := time.perf_counter()) < ends:
        await call()
        durations.append(time.perf_counter() - before)
    count = 0
    started = time.perf_counter()
    ends = started + seconds

    async def run() -> None:
        nonlocal count
        while time.perf_counter() < ends:
            await call()
            count += 1

    await asyncio.gather(*(run() for _ in range(IN_FLIGHT)))
    return statistics.median(durations) * 1e6, count / (time.perf_counter() - started)


class Bench:
    def __init__(self, http_port: int, grpc_port: int, tensor: np.ndarray[Any, Any]) -> None:
        self.http, self.grpc, self.tensor = f"{HOST}:{http_port}", f"{HOST}:{grpc_port}", tensor
        self.http_port = http_port

    # The blocking clients: each gives its calls, one for each thread, and what closes it.

    def isochrone_http(self) -> tuple[list[Call], Call]:
        return self._isochrone(self.http)

    def isochrone_grpc(self) -> tuple[list[Call], Call]:
        return self._isochrone(f"grpc://{self.grpc}")

    def _isochrone(self, url: str) -> tuple[list[Call], Call]:
        client = isochrone.Client(url)
        return [lambda: client.infer("identity", {"x": self.tensor})["y"]] * IN_FLIGHT, client.close

    def tritonclient_http(self) -> tuple[list[Call], Call]:
        # Its greenlets belong to one thread: every thread needs a client of its own.
        clients: dict[int, Any] = {}

        def call() -> Any:
            client = clients.get(threading.get_ident())
            if client is None:
                client = clients[threading.get_ident()] = triton_http.InferenceServerClient(self.http)
            given = triton_http.InferInput("x", self.tensor.shape, "FP32")
            given.set_data_from_numpy(self.tensor)
            return client.infer("identity", [given]).as_numpy("y")

        def close() -> None:
            clients.clear()

        return [call] * IN_FLIGHT, close

    def tritonclient_grpc(self) -> tuple[list[Call], Call]:
        client = triton_grpc.InferenceServerClient(self.grpc)

        def call() -> Any:
            given = triton_grpc.InferInput("x", self.tensor.shape, "FP32")
            given.set_data_from_numpy(self.tensor)
            return client.infer("identity", [given]).as_numpy("y")

        return [call] * IN_FLIGHT, client.close

    def plain_http_client(self) -> tuple[list[Call], Call]:
        """The standard library's, with only what a request needs."""
        head, body = self._request()

        def connection() -> Call:
            connected = http.client.HTTPConnection(HOST, self.http_port)

            def call() -> Any:
                connected.request("POST", "/v2/models/identity/infer", body, head)
                return self._read(connected.getresponse())

            return call

        return [connection() for _ in range(IN_FLIGHT)], lambda: None

    def plain_httpx(self) -> tuple[list[Call], Call]:
        head, body = self._request()
        client = httpx.Client(base_url=f"http://{self.http}")

        def call() -> Any:
            response = client.post("/v2/models/identity/infer", content=body, headers=head)
            return self._tensor(response.headers["inference-header-content-length"], response.content)

        return [call] * IN_FLIGHT, client.close

    def _request(self) -> tuple[dict[str, str], bytes]:
        inputs = [
            {
                "name": "x",
                "shape": self.tensor.shape,
                "datatype": "FP32",
                "parameters": {"binary_data_size": self.tensor.nbytes},
            }
        ]
        text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        return {"Inference-Header-Content-Length": str(len(text))}, text + self.tensor.tobytes()

    def _read(self, response: http.client.HTTPResponse) -> Any:
        return self._tensor(response.headers["inference-header-content-length"] or "0", response.read())

    def _tensor(self, length: str, content: bytes) -> Any:
        json.loads(content[: int(length)])
        return np.frombuffer(content[int(length) :], np.float32)

    # The asynchronous clients.

    async def isochrone_http_aio(self, seconds: float) -> tuple[float, float]:
        async with isochrone.AsyncClient(self.http) as client:
            return await asynchronous(lambda: client.infer("identity", {"x": self.tensor}), seconds)

    async def isochrone_grpc_aio(self, seconds: float) -> tuple[float, float]:
        async with isochrone.AsyncClient(f"grpc://{self.grpc}") as client:
            return await asynchronous(lambda: client.infer("identity", {"x": self.tensor}), seconds)

    async def tritonclient_http_aio(self, seconds: float) -> tuple[float, float]:
        async with triton_http_aio.InferenceServerClient(self.http) as client:

            async def call() -> Any:
                given = triton_http.InferInput("x", self.tensor.shape, "FP32")
                given.set_data_from_numpy(self.tensor)
                return (await client.infer("identity", [given])).as_numpy("y")

            return await asynchronous(call, seconds)

    async def tritonclient_grpc_aio(self, seconds: float) -> tuple[float, float]:
        async with triton_grpc_aio.InferenceServerClient(self.grpc) as client:

            async def call() -> Any:
                given = triton_grpc.InferInput("x", self.tensor.shape, "FP32")
                given.set_data_from_numpy(self.tensor)
                return (await client.infer("identity", [given])).as_numpy("y")

            return await asynchronous(call, seconds)


BLOCKING = (
    "isochrone_http",
    "tritonclient_http",
    "plain_http_client",
    "plain_httpx",
    "isochrone_grpc",
    "tritonclient_grpc",
)
ASYNCHRONOUS = ("isochrone_http_aio", "tritonclient_http_aio", "isochrone_grpc_aio", "tritonclient_grpc_aio")


def run_round(bench: Bench, names: list[str], seconds: float, figures: dict[str, Figures]) -> None:
    for name in names:
        if name in ASYNCHRONOUS:
            median, rate = asyncio.run(getattr(bench, name)(seconds))
        else:
            calls, close = getattr(bench, name)()
            for call in calls:
                assert np.array_equal(np.ravel(call()), np.ravel(bench.tensor))
            median, rate = one_at_a_time(calls[0], seconds), from_threads(calls, seconds)
            close()
        figures[name].medians_us.append(median)
        figures[name].rates.append(rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--floats", type=int, default=64)
    arguments = parser.parse_args()
    http_port, grpc_port = free_ports(2)
    command = [sys.executable, "-c", SERVER, str(arguments.floats), str(http_port), str(grpc_port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with isochrone.Client(f"{HOST}:{http_port}") as client:
            client.wait_ready(60)
        bench = Bench(http_port, grpc_port, np.arange(arguments.floats, dtype=np.float32))
        names = [*BLOCKING, *ASYNCHRONOUS]
        figures = {name: Figures() for name in names}
        for number in range(arguments.rounds):
            run_round(bench, names if number % 2 else names[::-1], arguments.seconds, figures)
    finally:
        server.terminate()
        server.wait()
    print(f"{arguments.floats} floats, {arguments.rounds} rounds of {arguments.seconds:g} s")
    print(f"{'client':24}{'median at 1 in flight':>24}{f'requests/s at {IN_FLIGHT}':>20}")
    for name in names:
        median, rate = statistics.median(figures[name].medians_us), statistics.median(figures[name].rates)
        print(f"{name:24}{median:>21.0f} µs{rate:>20.0f}")


if __name__ == "__main__":
    main()
