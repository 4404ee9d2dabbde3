"""What the console costs a controller: its share of a core while browsers look at a synthetic fleet.

    python -m bench.console_cost [--workers 100] [--models 4] [--readers 50] [--streams 0] [--browsers 0] [--seconds 20]

A child process is the controller (``bench.synthetic_controller``). ``--readers`` are page sessions: they load a page
with all its files, keep the framework's WebSocket open, and read the event stream, as a browser does, spread over four
pages. ``--streams`` read the event stream alone. ``--browsers`` are tabs of Debian's Chromium that draw what they read.
Before the readers, the controller's CPU time is measured without any; while they open, it is counted per page. It does
not prove what clicks cost, nor what collecting the figures from gateways costs: that is the same without a console.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time

import psutil

from bench.console_sessions import PAGES, Reader, chromium_tabs
from bench.synthetic_controller import synthetic_controller


class _Cpu:
    """CPU time of the controller: user and system, of all its threads."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    @property
    def seconds(self) -> float:
        return float(sum(self._process.cpu_times()[:2]))

    async def share(self, during: float) -> float:
        before, started = self.seconds, time.monotonic()
        await asyncio.sleep(during)
        return (self.seconds - before) / (time.monotonic() - started)


async def _measure(port: int, controller: psutil.Process, arguments: argparse.Namespace) -> dict[str, float]:
    base_url, cpu = f"http://127.0.0.1:{port}", _Cpu(controller)
    idle = await cpu.share(5)
    # NiceGUI is imported by the first page: paid once per controller.
    before = cpu.seconds
    first = Reader(base_url)
    async with first.client() as client:
        (await client.get("/console/")).raise_for_status()
    imported = cpu.seconds - before
    readers = [Reader(base_url) for _ in range(arguments.readers + arguments.streams)]
    before = cpu.seconds
    looking = [each.look_at(PAGES[index % len(PAGES)]) for index, each in enumerate(readers[: arguments.readers])]
    streaming = [each.read_stream() for each in readers[arguments.readers :]]
    reading = [asyncio.create_task(each) for each in (*looking, *streaming)]
    while not all(each.streamed for each in readers):
        await asyncio.sleep(0.1)
        for task in reading:
            if task.done():
                task.result()
    opening = cpu.seconds - before
    async with chromium_tabs(base_url, arguments.browsers):
        await asyncio.sleep(3)
        total = sum(each.streamed for each in readers)
        busy = await cpu.share(arguments.seconds)
        received = sum(each.streamed for each in readers) - total
    gone = sum(task.done() for task in reading)
    for each in reading:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    assert not gone, f"{gone} readers lost their connection"
    return {
        "idle_share": round(idle, 4),
        "share": round(busy, 4),
        "import_cpu_s": round(imported, 2),
        "opening_cpu_ms_each": round(1000 * opening / max(1, len(readers)), 1),
        "loaded_kb_each": round(sum(each.loaded for each in readers) / max(1, arguments.readers) / 1000),
        "streamed_bytes_each_and_second": round(received / max(1, len(readers)) / arguments.seconds),
        "resident_mb": round(controller.memory_info().rss / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--readers", type=int, default=50, help="page sessions")
    parser.add_argument("--streams", type=int, default=0, help="readers of the event stream alone")
    parser.add_argument("--browsers", type=int, default=0, help="tabs of Chromium")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with synthetic_controller(arguments.workers, arguments.models) as (process, port):
        found = asyncio.run(_measure(port, psutil.Process(process.pid), arguments))
    given = {name: getattr(arguments, name) for name in ("workers", "models", "readers", "streams", "browsers")}
    print(json.dumps({**given, **found, "load_average": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
