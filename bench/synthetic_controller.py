"""A controller of a synthetic fleet, as a process: the control API with the console over a store of records, and
synthetic figures once a second. For benches of the console.

    python -m bench.synthetic_controller DIRECTORY [--workers 100] [--models 4] [--ports PORT,PORT...]

It prints its port. With ``--ports``, the workers are at these ports of the loopback interface.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.synthetic_fleet import SyntheticFleet

#: Seconds of figures before the first request, and after it.
_PAST, _FUTURE = 300, 300


@contextmanager
def synthetic_controller(
    workers: int, models: int, ports: Sequence[int] = ()
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port."""
    with tempfile.TemporaryDirectory() as directory:
        words = ["-m", "bench.synthetic_controller", directory, "--workers", str(workers), "--models", str(models)]
        words += ["--ports", ",".join(map(str, ports))]
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process, int(process.stdout.readline())
            finally:
                process.terminate()


async def _serve(directory: Path, fleet: SyntheticFleet) -> None:
    from isochrone.console.mounting import Console, running
    from isochrone.control.api.application import create_app
    from isochrone.control.api.serving import serve_api
    from isochrone.control.figures.history import History
    from isochrone.simulate.what_if.process import SimulatorProcess
    from isochrone.store.mirror import Mirror
    from isochrone.store.opening import open_store

    history = History()
    store = open_store(f"sqlite:{directory / 'fleet.db'}")
    await fleet.write(store)
    mirror = Mirror(store, fleet.keys.prefix)
    await mirror.start()
    # Made beforehand: drawing random figures is not a controller's work.
    now = int(time.time())
    made = [fleet.frame(now - _PAST + index) for index in range(_PAST + _FUTURE)]
    for frame in made[:_PAST]:
        history.add(frame)

    async def add() -> None:
        for frame in made[_PAST:]:
            history.add(frame)
            await asyncio.sleep(1)

    console = Console()
    app = create_app(
        store, mirror, fleet.keys, history=history, simulator=SimulatorProcess(), further_routes=console.routes
    )
    adding = asyncio.create_task(add())
    try:
        async with running(console):
            await serve_api(app, "127.0.0.1", 0, lambda port: print(port, flush=True))
    finally:
        adding.cancel()
        await mirror.stop()
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--ports", default="")
    arguments = parser.parse_args()
    ports = [int(port) for port in arguments.ports.split(",") if port]
    host = "127.0.0.1" if ports else "10.0.0.1"
    fleet = SyntheticFleet(arguments.workers, models=arguments.models, host=host, ports=ports)
    asyncio.run(_serve(arguments.directory, fleet))


if __name__ == "__main__":
    main()
