"""What the console costs a controller: its share of a core while browsers look at a synthetic fleet.

    python -m bench.console_cost [--workers 100] [--readers 50] [--seconds 30]

A child process is the controller: the control API with the console over a store of records, and synthetic figures once
a second. This process opens a page of NiceGUI and a live stream per reader, and reads all of them. Before and after
the readers, the controller's CPU time is measured without any. It does not prove what a real browser sends beside the
stream (a ping every half minute), nor what collecting the figures from gateways costs: that is the same without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from bench.synthetic_fleet import SyntheticFleet


async def _controller(workers: int, directory: Path) -> None:
    from isochrone.console.mounting import Console, running
    from isochrone.control.api.application import create_app
    from isochrone.control.api.serving import serve_api
    from isochrone.control.figures.history import History
    from isochrone.store.mirror import Mirror
    from isochrone.store.opening import open_store

    fleet, history = SyntheticFleet(workers), History()
    store = open_store(f"sqlite:{directory / 'fleet.db'}")
    await fleet.write(store)
    mirror = Mirror(store, fleet.keys.prefix)
    await mirror.start()
    # Made beforehand: drawing them is not the controller's work.
    now = int(time.time())
    made = [fleet.frame(now - 300 + index) for index in range(600)]
    for frame in made[:300]:
        history.add(frame)

    async def add() -> None:
        for frame in made[300:]:
            history.add(frame)
            await asyncio.sleep(1)

    console = Console()
    app = create_app(store, mirror, fleet.keys, history=history, further_routes=console.routes)
    adding = asyncio.create_task(add())
    try:
        async with running(console):
            await serve_api(app, "127.0.0.1", 0, lambda port: print(port, flush=True))
    finally:
        adding.cancel()
        await mirror.stop()
        await store.close()


async def _read(client: httpx.AsyncClient, counts: list[int], index: int) -> None:
    await client.get("/console/")
    async with client.stream("GET", "/console/live") as response:
        async for chunk in response.aiter_raw():
            counts[index] += len(chunk)


async def _measure(port: int, controller: psutil.Process, readers: int, seconds: float) -> dict[str, float]:
    async def share(during: float) -> float:
        before, started = sum(controller.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(during)
        return (sum(controller.cpu_times()[:2]) - before) / (time.monotonic() - started)

    counts = [0] * readers
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60, limits=limits
    ) as client:
        idle = await share(5)
        reading = [asyncio.create_task(_read(client, counts, index)) for index in range(readers)]
        # NiceGUI is imported and the pages are made: paid once per page, not per second.
        while not all(counts):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        total = sum(counts)
        busy = await share(seconds)
        received = sum(counts) - total
        for each in reading:
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return {
        "idle_share": round(idle, 4),
        "share": round(busy, 4),
        "bytes_per_reader_and_second": round(received / readers / seconds),
        "resident_mb": round(controller.memory_info().rss / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--controller", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.controller:
        asyncio.run(_controller(arguments.workers, Path(arguments.controller)))
        return
    with tempfile.TemporaryDirectory() as directory:
        words = ["-m", "bench.console_cost", "--workers", str(arguments.workers), "--controller", directory]
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                port = int(process.stdout.readline())
                found = asyncio.run(_measure(port, psutil.Process(process.pid), arguments.readers, arguments.seconds))
            finally:
                process.terminate()
    load = os.getloadavg()[0]
    print(json.dumps({"workers": arguments.workers, "readers": arguments.readers, **found, "load_average": load}))


if __name__ == "__main__":
    main()
