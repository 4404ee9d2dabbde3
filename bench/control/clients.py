"""``python -m bench.control.clients``: one client process: load over several gateways, every request on record.

Open loop at a rate (Poisson from a seed, so that a slow fleet cannot make its own load lighter) or closed, with a
fixed number in flight. SIGTERM, or the end of its time, stops new requests; the process ends when each of its requests
has an answer, an error or has been given up. Must never end with a request that is not on record.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from bench.control.flights import CONNECTION, Crew, Flight, Transport
from bench.control.history import HistoryWriter
from bench.control.models import CHAIN, SOLO

#: A request without an answer for this long is lost: far longer than any pause of a switch or a recovery.
LOST_SECONDS = 45.0
_SWEEP_SECONDS = 1.0


class Pilot:
    """Schedules the requests of one client."""

    def __init__(
        self, crew: Crew, gateways: list[str], models: list[str], seed: int, *, retry: bool, agents: int = 0
    ) -> None:
        self._crew = crew
        self._gateways = gateways
        self._models = models
        self._random = random.Random(seed)
        self._retry = retry
        self._agents = [f"agent-{number}" for number in range(1, agents + 1)] or [""]
        self.transport: Transport
        self.stopping = asyncio.Event()
        self._keep_full = False
        self._one_landed = asyncio.Event()

    def landed(self, flight: Flight, error: str) -> None:
        """A request is over: a client whose connection ended retries at another gateway, once."""
        self._one_landed.set()
        if self._retry and not flight.is_retry and error.startswith(CONNECTION) and len(self._gateways) > 1:
            others = [gateway for gateway in self._gateways if gateway != flight.gateway]
            other = self._random.choice(others)
            self.transport.send(self._crew.begin(flight.model, other, flight.agent, is_retry=True))
        elif self._keep_full and not self.stopping.is_set():
            # After a pause, or a gateway that rejects requests would be flooded.
            asyncio.get_running_loop().call_later(0.01 if error else 0, self._one_more)

    async def open_loop(self, rate: float) -> None:
        """Poisson arrivals until it must stop."""
        due = time.monotonic()
        while not self.stopping.is_set():
            now = time.monotonic()
            while due <= now:
                self._send()
                due += self._random.expovariate(rate)
            with suppress(TimeoutError):
                async with asyncio.timeout(due - time.monotonic()):
                    await self.stopping.wait()

    async def closed_loop(self, in_flight: int) -> None:
        self._keep_full = True
        for _ in range(in_flight):
            self._send()
        await self.stopping.wait()

    async def sweep(self) -> None:
        """Give up requests that no caller waits for any more."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for flight in self._crew.lost(time.monotonic_ns() - int(LOST_SECONDS * 1e9)):
                self.transport.give_up(flight)
                self._one_landed.set()

    async def land(self) -> None:
        """Until no request is in flight."""
        while self._crew.in_flight:
            self._one_landed.clear()
            await self._one_landed.wait()

    def _one_more(self) -> None:
        if not self.stopping.is_set():
            self._send()

    def _send(self) -> None:
        draw = self._random
        agent = draw.choice(self._agents) if len(self._agents) > 1 else self._agents[0]
        self.transport.send(self._crew.begin(draw.choice(self._models), draw.choice(self._gateways), agent))


async def fly(given: argparse.Namespace) -> None:
    """The whole life of a client."""
    writer = HistoryWriter(given.history, given.client)
    crew = Crew(given.client, writer)
    pilot = Pilot(crew, given.gateway, given.model, given.seed, retry=given.retry, agents=given.agents)
    pilot.transport = _transport(given, crew, pilot.landed)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, pilot.stopping.set)
    await pilot.transport.open()
    if given.seconds:
        loop.call_later(given.seconds, pilot.stopping.set)
    sweeping = loop.create_task(pilot.sweep())
    try:
        if given.in_flight:
            await pilot.closed_loop(given.in_flight)
        else:
            await pilot.open_loop(given.rate)
        await pilot.land()
    finally:
        sweeping.cancel()
        await pilot.transport.close()
    writer.close()


def _transport(given: argparse.Namespace, crew: Crew, landed: Callable[[Flight, str], None]) -> Transport:
    if given.transport == "grpc":
        # Here, since the import takes longer than everything else together.
        from bench.control.grpc_transport import GrpcTransport

        return GrpcTransport(crew, landed, given.gateway)
    from bench.control.http_transport import HttpTransport

    return HttpTransport(crew, landed, given.gateway, given.connections)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control.clients", description=__doc__)
    parser.add_argument("--history", type=Path, required=True, help="directory its file goes to")
    parser.add_argument("--client", required=True, help="its name, and that of its file")
    parser.add_argument("--gateway", action="append", required=True, help="HOST:PORT; may be repeated")
    parser.add_argument("--model", action="append", help="may be repeated, also to weigh one more")
    parser.add_argument("--transport", choices=("http", "grpc"), default="http")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second, open loop")
    parser.add_argument("--in-flight", type=int, default=0, help="closed loop instead, so many at once")
    parser.add_argument("--connections", type=int, default=4, help="opened to each gateway before the first request")
    parser.add_argument("--seconds", type=float, default=0.0, help="0: until SIGTERM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=0, help="each request names one of so many; 0: none")
    parser.add_argument("--retry", action="store_true", help="ask another gateway, once, when a connection ended")
    given = parser.parse_args(words)
    given.model = given.model or [SOLO, CHAIN]
    return given


def main() -> int:
    given = arguments()
    # grpc.aio polls through its own thread and is made for asyncio's own loop.
    loop_factory = asyncio.new_event_loop if given.transport == "grpc" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(fly(given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
