"""A loop whose connections lead nowhere, and members of a fleet made by hand: for tests without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.caller_requests import CallerRequest
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.resolving.resolver import Resolver
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Buffer, Head, Headers
from isochrone.wire.receiver import Receiver


class RecordingTransport(asyncio.Transport):
    """Keeps what is written; the test plays the server by calling the protocol."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.reading = True
        protocol.connection_made(self)

    def write(self, data: Buffer) -> None:
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None: ...

    def abort(self) -> None: ...


class NoNames(Resolver):
    """Gives every name as its own address, without a lookup."""

    async def addresses(self, host: str, seconds: float = 1.0) -> tuple[str, ...]:
        return (host,)


class OfflineLoop(asyncio.SelectorEventLoop):
    """``create_connection`` gives a recording transport, or fails as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: list[RecordingTransport] = []
        self.refuses = False
        #: Connecting waits for this.
        self.gate: asyncio.Event | None = None
        #: Seconds to each timer that was set, when it was.
        self.timers: list[float] = []
        self._stopped_at: float | None = None

    def stop_clock(self) -> None:
        """From now on, timers are due only when the test lets time pass, however slow the machine is."""
        self._stopped_at = self.time()

    def pass_time(self, seconds: float) -> None:
        assert self._stopped_at is not None, "stop_clock comes first"
        self._stopped_at += seconds

    def time(self) -> float:
        return super().time() if self._stopped_at is None else self._stopped_at

    def call_at(self, when: float, *arguments: Any, **keywords: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers.append(when - self.time())
        return super().call_at(when, *arguments, **keywords)

    async def create_connection(self, factory: Callable[[], Any], *arguments: Any, **keywords: Any) -> Any:  # type: ignore[override]
        if self.gate is not None:
            await self.gate.wait()
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        transport = RecordingTransport(protocol)
        self.transports.append(transport)
        return transport, protocol


def offline(test: Callable[[OfflineLoop], Any]) -> None:
    """Runs a test's coroutine on such a loop."""
    with asyncio.Runner(loop_factory=OfflineLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, OfflineLoop)
        runner.run(test(loop))


async def turns(count: int = 5) -> None:
    """Lets what is due run."""
    for _ in range(count):
        await asyncio.sleep(0)


class Answer(Receiver):
    """A receiver that notes what it got."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_complete = False
        self.error: IsochroneError | None = None

    def head(self, status: int, headers: Headers) -> None:
        self.status = status

    def data(self, data: Buffer) -> None:
        self.body += bytes(data)

    def complete(self, trailers: Headers) -> None:
        self.is_complete = True

    def failed(self, error: IsochroneError) -> None:
        self.error = error


def make_fleet(rules: GatewayRules | None = None, outliers: Outliers | None = None) -> Fleet:
    rules = rules or GatewayRules()
    return Fleet(rules, WireLimits(), outliers or Outliers(rules.outliers), seed=1)


def add_members(fleet: Fleet, *serves: Mapping[str, Mapping[str, str]] | None) -> None:
    """Healthy members a:1, b:1, …, which serve these models and versions; None: that is not known."""
    names = [chr(ord("a") + number) for number in range(len(serves))]
    fleet.set_members(Upstream(name, 1, 1) for name in names)
    for name, served in zip(names, serves, strict=True):
        member = fleet.members[f"{name}:1"]
        member.endpoint.healthy = True
        member.endpoint.joined_at = -(10**18)
        member.serves = served
    fleet.rebuild()


class Caller:
    """The exchange of an HTTP request, with a memory of its own; keeps its answer."""

    owner: Any = None
    is_congested = False
    #: Of the memory budget: for the body, to begin with; and the most there was.
    reserved = most = 1000
    #: The memory budget.
    memory = 1 << 30
    status = 0
    headers: Headers = ()
    text = b""

    def __init__(self, head: Head, body: bytes = b"{}") -> None:
        self.head, self.body = head, body
        self.arrived = now_ns()

    def reserve(self, size: int) -> bool:
        if self.reserved + size > self.memory:
            return False
        self.reserved += size
        self.most = max(self.most, self.reserved)
        return True

    def give_back(self, size: int) -> None:
        self.reserved -= size

    def no_memory(self) -> str:
        return "no memory"

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.headers, self.text = status, headers, b"".join(map(bytes, body))


def only_request(gateway: Gateway) -> CallerRequest:
    """The one request in flight."""
    (request,) = gateway.machine.open
    assert isinstance(request, CallerRequest)
    return request
