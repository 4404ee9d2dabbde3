"""How long a gateway's housekeeping holds its event loop: `python -m bench.gateway.housekeeping`.

A real gateway process, led by a store, before 100 workers that serve 1,000 models each. Phases: the start, idle, steady
requests, rollouts (an epoch per second), workers that register again in bursts, workers that stop being ready and
return, workers that fall silent with requests in flight. Its metrics page is read every five seconds. Beside it, a
process that only sleeps records the machine's own stalls.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.gateway.housekeeping.callers import Callers
from bench.gateway.housekeeping.fleet_records import FleetRecords, model_names
from bench.gateway.housekeeping.report import report
from bench.worker.stalls import StallProbe
from isochrone.wire.connect import connect_http1

_ROOT = Path(__file__).resolve().parents[3]


class Helper:
    """A process that answers each line of JSON with one."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"bench.gateway.housekeeping.{module}", *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=_log(module), cwd=_ROOT
        )

    async def read(self) -> Any:
        assert self.process.stdout is not None
        line = await asyncio.get_running_loop().run_in_executor(None, self.process.stdout.readline)
        if not line:
            raise SystemExit(f"a helper process ended; see {_log_path(self.process.args)}")  # type: ignore[arg-type]
        return json.loads(line)

    async def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return await self.read()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _log_path(command: list[str]) -> str:
    return str(Path(tempfile.gettempdir()) / f"isochrone-bench-{command[2].rpartition('.')[2]}.log")


def _log(module: str) -> Any:
    return open(_log_path(["", "", module]), "w")


class Run:
    """One run over all phases."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(1)
        self.names = model_names(options.models)
        self.figures: list[dict[str, Any]] = []
        self.callers: list[dict[str, Any]] = []

    async def run(self) -> None:
        options = self.options
        with tempfile.TemporaryDirectory() as directory:
            self.workers = Helper("workers", str(options.workers), str(options.models))
            self.gateway: Helper | None = None
            try:
                ports = await self.workers.read()
                url = f"sqlite:{directory}/store.db"
                self.records = FleetRecords(url, options.models, ports)
                for number in range(options.workers):
                    await self.records.register(number, "first")
                await self.records.commit({})
                begun = time.monotonic()
                self.gateway = Helper("measured_gateway", url, str(options.blame))
                self.ports = (await self.gateway.read())["ready"]
                print(f"gateway ready after {time.monotonic() - begun:.1f} s", file=sys.stderr)
                await asyncio.sleep(options.settle)
                await self._phases()
            finally:
                if self.gateway is not None:
                    self.gateway.stop()
                self.workers.stop()
            await self.records.close()

    async def _phases(self) -> None:
        assert self.gateway is not None
        phases: dict[str, tuple[bool, Callable[[], Awaitable[None]]]] = {
            "idle": (False, self._nothing),
            "steady": (True, self._notes),
            "rollouts": (True, self._rollouts),
            "register again": (True, self._register_again),
            "not ready": (True, self._not_ready),
            "silent": (True, self._silent),
        }
        for name, (has_callers, drive) in phases.items():
            self.figures.append(await self.gateway.ask(name))
            print(name, file=sys.stderr)
            callers = Callers(self.ports["gateway"], self.names, self.options.rate if has_callers else 0.0)
            driving = asyncio.ensure_future(drive())
            scraping = asyncio.ensure_future(self._scrape())
            await callers.run(self.options.seconds)
            await driving
            scraping.cancel()
            self.callers.append({"name": name, **callers.figures()})
        self.figures.append(await self.gateway.ask("end"))

    async def _scrape(self) -> None:
        """Prometheus, every five seconds."""
        while True:
            await asyncio.sleep(2)
            connection = await connect_http1("127.0.0.1", self.ports["metrics"])
            await connection.request(b"GET", b"/metrics", ((b"host", b"bench"),), timeout=20)
            connection.close()
            await asyncio.sleep(3)

    async def _nothing(self) -> None:
        """Only what a gateway does by itself."""

    async def _notes(self) -> None:
        """Twenty revisions per second that concern no gateway."""
        ends = time.monotonic() + self.options.seconds
        while time.monotonic() < ends:
            await self.records.note()
            await asyncio.sleep(0.05)

    async def _rollouts(self) -> None:
        """Each second one model gets another version: loaded everywhere, committed, the old one unloaded."""
        ends = time.monotonic() + self.options.seconds
        version = dict.fromkeys(self.names, 1)
        while time.monotonic() < ends:
            name = self.random.choice(self.names)
            old, new = str(version[name]), str(version[name] + 1)
            version[name] += 1
            await self.workers.ask(json.dumps({"versions": {name: [old, new]}}))
            await self.records.commit({name: new})
            for _ in range(4):
                await self.records.note()
                await asyncio.sleep(0.25)

    async def _register_again(self) -> None:
        """All workers write their records again at once, every two seconds."""
        ends = time.monotonic() + self.options.seconds
        number = 0
        while time.monotonic() < ends:
            number += 1
            for worker in range(self.options.workers):
                await self.records.register(worker, f"again {number}")
            await asyncio.sleep(2)

    async def _not_ready(self) -> None:
        """A tenth of the workers after the other stops being ready and returns, as in a rolling restart."""
        everybody = set(range(self.options.workers))
        ends = time.monotonic() + self.options.seconds
        tenth = 0
        while time.monotonic() < ends:
            size = max(1, self.options.workers // 10)
            away = {number % self.options.workers for number in range(tenth * size, (tenth + 1) * size)}
            tenth += 1
            await self.workers.ask(json.dumps({"ready": sorted(everybody - away)}))
            await asyncio.sleep(0.5)
            await self.workers.ask(json.dumps({"ready": sorted(everybody)}))
            await asyncio.sleep(0.5)

    async def _silent(self) -> None:
        """A tenth of the workers after the other answers nothing for a second, health checks included."""
        ends = time.monotonic() + self.options.seconds
        size = max(1, self.options.workers // 10)
        first = 0
        while time.monotonic() < ends:
            away = [number % self.options.workers for number in range(first, first + size)]
            first += size
            await self.workers.ask(json.dumps({"silent": away}))
            await asyncio.sleep(1)
            await self.workers.ask(json.dumps({"silent": []}))
            await asyncio.sleep(0.5)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.housekeeping", description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second, over all models")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds between ready and the first phase")
    parser.add_argument("--quick", action="store_true", help="50 models, 10 workers, 2 seconds")
    parser.add_argument("--blame", type=float, default=0.0, help="log the stack of stalls above so many seconds; costs")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    if options.quick:
        options.models, options.workers, options.seconds, options.settle = 50, 10, 2.0, 1.0
    return options


def main() -> None:
    options = _options()
    run = Run(options)
    with StallProbe() as probe:
        uvloop.run(run.run())
    load = os.getloadavg()[0]
    text, document = report(options.models, options.workers, run.figures, run.callers, probe.stalls, load)
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps(document))


if __name__ == "__main__":
    main()
