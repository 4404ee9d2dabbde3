"""Requests that wait for a switch: one that fails harms no other, and none waits past its own deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from offline import add_members, make_fleet
from structlog.testing import capture_logs

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import DeadlineExceeded, Internal, IsochroneError, Unavailable
from isochrone.gateway.commitment import Commitment
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.holding import Held
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits


class Request:
    """What holding looks at."""

    def __init__(self, name: str, arrived: int = 0) -> None:
        self.name = name
        self.arrived = arrived
        self.owner: Any = None


class Route:
    """Notes what becomes of requests; those named "broken" fail, and "lost" ones cannot even be refused."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.refused: list[tuple[str, IsochroneError]] = []
        self.has_refused = asyncio.Event()

    def handle(self, exchange: Any) -> None:
        if exchange.name in ("broken", "lost"):
            raise ValueError("a fault of ours")
        self.handled.append(exchange.name)

    def refuse_held(self, exchange: Any, error: IsochroneError) -> None:
        if exchange.name == "lost":
            raise ValueError("another one")
        self.refused.append((exchange.name, error))
        self.has_refused.set()

    def hold(self, held: Held, *names: str, timeout_ns: int = 0, arrived: int = 0) -> list[Request]:
        requests = [Request(name, arrived) for name in names]
        for request in requests:
            held.wait(self, request, timeout_ns)  # type: ignore[arg-type]
        return requests


def failing() -> None:
    raise ValueError("a fault of ours")


def test_one_that_fails_is_told_and_the_others_go_on() -> None:
    held, route = Held(0), Route()
    resumed: list[str] = []
    told: list[IsochroneError] = []
    route.hold(held, "first", "broken", "lost", "second")
    held.wait_stream(failing, told.append)
    held.wait_stream(lambda: resumed.append("stream"), told.append)
    with capture_logs() as lines:
        assert held.release() == 6
    assert route.handled == ["first", "second"]
    ((name, error),) = route.refused
    assert name == "broken"
    assert isinstance(error, Internal)
    assert resumed == ["stream"]
    assert [type(each) for each in told] == [Internal]
    assert [line["log_level"] for line in lines] == ["error"] * 4
    assert len(held) == 0


def test_all_are_refused_though_one_cannot_be() -> None:
    held, route = Held(0), Route()
    told: list[IsochroneError] = []
    route.hold(held, "lost", "first")
    held.wait_stream(failing, lambda error: failing())
    held.wait_stream(failing, told.append)
    with capture_logs() as lines:
        held.refuse(Unavailable("it takes too long"))
    assert [name for name, _ in route.refused] == ["first"]
    assert [str(error) for error in told] == ["it takes too long"]
    assert len(lines) == 2


def test_a_request_whose_own_time_is_up_is_told() -> None:
    held, route = Held(0), Route()
    route.hold(held, "late", timeout_ns=30 * MILLISECOND)
    route.hold(held, "hasty", timeout_ns=10 * MILLISECOND)
    route.hold(held, "patient")
    (gone,) = route.hold(held, "gone", timeout_ns=10 * MILLISECOND)
    gone.owner.abandoned()
    held.expire(10 * MILLISECOND - 1)
    assert route.refused == []
    held.expire(10 * MILLISECOND)
    ((name, error),) = route.refused
    assert name == "hasty"
    assert isinstance(error, DeadlineExceeded)
    assert "waited 10.0 ms for a version to be switched" in str(error)
    held.expire(20 * MILLISECOND)
    assert len(route.refused) == 1
    assert held.release() == 2
    assert route.handled == ["late", "patient"]
    held.expire(10**18)
    assert len(route.refused) == 1


@pytest.mark.parametrize("model", ["m", "n"])
def test_the_fleet_looks_at_models_that_are_held(model: str) -> None:
    fleet = make_fleet()
    add_members(fleet, {"m": {"1": ""}, "n": {"1": ""}})
    fleet.lead()
    fleet.commit(1, {name: Commitment(1, "1", {"1": ""}) for name in ("m", "n")})
    fleet.expire_held(10**18)
    fleet.hold(["m", "n", "unheard of"])
    route, waits = Route(), fleet.model(model).held
    assert waits is not None
    route.hold(waits, "hasty", timeout_ns=1)
    fleet.expire_held(1)
    assert [name for name, _ in route.refused] == ["hasty"]


def test_the_sweep_of_a_gateway_does() -> None:
    async def play() -> None:
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}})
        gateway.fleet.lead()
        gateway.fleet.commit(1, {"m": Commitment(1, "1", {"1": ""})})
        gateway.fleet.hold(["m"])
        route, waits = Route(), gateway.fleet.model("m").held
        assert waits is not None
        route.hold(waits, "hasty", timeout_ns=1, arrived=now_ns())
        route.hold(waits, "patient")
        sweep = asyncio.ensure_future(gateway.run())
        try:
            async with asyncio.timeout(30):
                await route.has_refused.wait()
        finally:
            sweep.cancel()
        assert [name for name, _ in route.refused] == ["hasty"]
        assert len(waits) == 1

    asyncio.run(play())
