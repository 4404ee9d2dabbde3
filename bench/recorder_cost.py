"""What the flight recorder costs: requests per second of one worker, and of one gateway before it, in turns on and off.

    python -m bench.recorder_cost [--rounds 10] [--seconds 3] [--connections 16]

Every round measures each pair one after the other, in an order that changes, by a closed loop over a few connections in
a process of its own. It prints the median of the ratios on/off and their spread. Processes with and without the
recorder run beside each other and are idle while
the other is measured. It does not show what the recorder costs a machine that is short of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from bench.ports import ports_in_a_row
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.flight_records import WorkerFlightRecords

_MODEL = """
class Model:
    def infer(self, inputs):
        return {"y": inputs["x"]}
"""
_BODY = b'{"id":"bench","inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
_START_SECONDS = 60.0


def write_model(repository: Path) -> Path:
    version = repository / "echo" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    tensors = "\n".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}'
        for kind, name in (("input", "x"), ("output", "y"))
    )
    (repository / "echo" / "config.pbtxt").write_text(f'name: "echo"\nbackend: "python"\n{tensors}\n')
    return repository


@contextlib.contextmanager
def started(*words: str, port: int) -> Iterator[int]:
    """A process of isochrone; its port, once it answers."""
    command = [sys.executable, "-m", "isochrone", *words]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_until_ready(process, port))
        yield port
    finally:
        process.terminate()
        process.wait(30)


async def _until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise SystemExit(f"a process ended with {process.returncode}")
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if await _once(port) == 200:
                return
        await asyncio.sleep(0.1)
    raise SystemExit(f"nothing answers on port {port}")


def _request() -> bytes:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(_BODY), _BODY)


async def _once(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_request())
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])
    finally:
        writer.close()


class _Caller(asyncio.Protocol):
    """One connection that sends the next request when the last one is answered."""

    def __init__(self) -> None:
        self.answered = 0
        self._request = _request()
        self._size = 0
        self._have = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._size:
            # All answers are alike: the first one's length is everybody's.
            head, _, _ = data.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self._size = len(head) + 4 + int(lengths[0].split(b":")[1])
        self._have += len(data)
        if self._have >= self._size:
            self._have -= self._size
            self.answered += 1
            assert self._transport is not None
            self._transport.write(self._request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _load(port: int, connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    callers = [(await loop.create_connection(_Caller, "127.0.0.1", port))[1] for _ in range(connections)]
    await asyncio.sleep(0.3)
    before, began = sum(caller.answered for caller in callers), time.monotonic()
    await asyncio.sleep(seconds)
    rate = (sum(caller.answered for caller in callers) - before) / (time.monotonic() - began)
    for caller in callers:
        caller.close()
    return rate


def _measure(port: int, connections: int, seconds: float) -> float:
    import uvloop

    return uvloop.run(_load(port, connections, seconds))


def allocations(requests: int = 4096) -> tuple[float, float]:
    """Bytes that a full ring holds per request, and ns of one addition, with records like a worker's."""
    flights = WorkerFlightRecords(requests)
    who = ("model", "1")
    plan = Plan("model", "1", (), None)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2 * requests):
        base = 10**15 + number * 1000
        flights.answered(who, InferRequest(plan, f"request-{number}", {}, base, base + 8), base + 7, 1)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    same = InferRequest(plan, "request", {}, 1)
    began = time.perf_counter_ns()
    for _ in range(200_000):
        flights.answered(who, same, 2, 1)
    return held / requests, (time.perf_counter_ns() - began) / 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = write_model(directory / "models")
        first = ports_in_a_row(5)
        quiet = ("--host", "127.0.0.1", "--allow-grpc=false", "--allow-metrics=false")
        targets: dict[str, dict[str, int]] = {"worker": {}, "gateway": {}}
        for index, mode in enumerate(("off", "4096")):
            port = first + index
            words = ("serve", str(models), *quiet, "--http-port", str(port), "--flight-recorder", mode)
            targets["worker"][mode] = stack.enter_context(started(*words, port=port))
        upstream = f"127.0.0.1:{targets['worker']['off']}"
        for index, mode in enumerate(("off", "4096")):
            port = first + 2 + index
            flags = ("gateway", "--listen", f"127.0.0.1:{port}", "--metrics-port", "-1", "--upstream", upstream)
            targets["gateway"][mode] = stack.enter_context(started(*flags, "--flight-recorder", mode, port=port))
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(1))
        ratios: dict[str, list[float]] = {name: [] for name in targets}
        for number in range(options.rounds):
            for name, ports in targets.items():
                order = ("off", "4096") if number % 2 else ("4096", "off")
                rates = {
                    mode: pool.apply(_measure, (ports[mode], options.connections, options.seconds)) for mode in order
                }
                ratios[name].append(rates["4096"] / rates["off"])
                print(f"{number + 1:3} {name:8} off {rates['off']:9.0f}/s   on {rates['4096']:9.0f}/s", flush=True)
    for name, found in ratios.items():
        low, high = min(found), max(found)
        print(
            f"{name}: on/off median {statistics.median(found):.4f}, from {low:.4f} to {high:.4f}, {len(found)} rounds"
        )
    held, addition = allocations()
    print(f"ring: {held:.0f} bytes per request, {addition:.0f} ns per record; {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
