"""What happens by the clock: the first request after a rest does not wait for the rest to end."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from isochrone.clock import MILLISECOND, SECOND
from isochrone.gateway.front import http_requests
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits


class Due:
    """A request whose time is up."""

    due_at = 0

    def __init__(self) -> None:
        self.looked = asyncio.Event()


def look(request: Due, now: int) -> list[Any]:
    request.looked.set()
    return []


async def rests(gateway: Gateway) -> None:
    while True:
        if gateway.resting is not None:
            return
        await asyncio.sleep(0)


@pytest.mark.interpreted
def test_a_request_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        gateway = Gateway(GatewayRules(), WireLimits())
        monkeypatch.setattr(gateway.machine, "due", look)
        sweeping = asyncio.ensure_future(gateway.run())
        for _ in range(3):
            await rests(gateway)
            due: Any = Due()
            gateway.machine.open[due] = None
            gateway.wake()
            async with asyncio.timeout(100):
                await due.looked.wait()
            gateway.machine.open.pop(due)
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.interpreted
def test_a_fault_with_one_request_ends_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(GatewayRules(), WireLimits())
    aborted: list[Any] = []

    class Faulty(Due):
        deadline = 0
        over = False

        def __init__(self) -> None: ...

        def expire(self) -> None:
            raise ValueError("a fault of ours")

        def abort(self) -> None:
            aborted.append(self)

    def due(request: Any, now: int) -> list[Any]:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(gateway.machine, "due", due)
    first, second, stream = Faulty(), Faulty(), Faulty()
    gateway.machine.open.update({first: None, second: None})  # type: ignore[dict-item]
    gateway.streams.add(stream)  # type: ignore[arg-type]
    gateway.sweep(1)
    assert aborted == [first, second, stream]
    assert not gateway.machine.open
    assert not gateway.streams


@pytest.mark.interpreted
def test_requests_in_flight_are_looked_through_only_when_one_may_be_due() -> None:
    looks = 0

    class Waiting:
        deadline = 1000 * SECOND
        over = False

        @property
        def due_at(self) -> int:
            nonlocal looks
            looks += 1
            return self.deadline

    gateway = Gateway(GatewayRules(), WireLimits())
    gateway.machine.open.update(dict.fromkeys([Waiting() for _ in range(100)]))  # type: ignore[arg-type]
    for sweep in range(500):
        gateway.sweep(SECOND + sweep * 2 * MILLISECOND)
    # Once at first, and once a second: each time twice, for those that are due and for the next that will be.
    assert looks <= 2 * 2 * 100


@pytest.mark.interpreted
def test_of_thousands_that_are_due_at_once_a_few_take_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(GatewayRules(), WireLimits())
    handled: list[Any] = []

    def due(request: Any, now: int) -> list[Any]:
        handled.append(request)
        del gateway.machine.open[request]
        return []

    monkeypatch.setattr(gateway.machine, "due", due)

    class Plain:
        due_at = 0

    requests: Any = [Plain() for _ in range(5000)]
    gateway.machine.open.update(dict.fromkeys(requests))
    counts = [len(handled) for _ in gateway._sweep(1)]
    assert handled == requests
    assert max(after - before for before, after in pairwise([0, *counts])) <= 16


def test_what_is_remembered_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "_MAX_STARTS_BYTES", 10_000)
    http_requests._plain_starts.clear()
    http_requests._Remembered.size = 0
    for number in range(1000):
        start = b"%d" % number + b"x" * 990
        http_requests._remember_plain(start)
        http_requests._remember_plain(start)
        assert start in http_requests._plain_starts
        assert sum(len(each or b"") for each in http_requests._plain_starts) <= 10_000
    http_requests._plain_starts.clear()
    http_requests._Remembered.size = 0


def test_large_heads_of_answers_are_not_remembered() -> None:
    small = ((b"x-own", b"1"),)
    large = ((b"x-own", b"1" * 5000),)
    for headers, kept in ((small, True), (large, False)):
        assert http_requests.returned(headers, False) == headers
        found = http_requests._returned.get(id(headers))
        assert (found is not None and found[0] is headers) == kept
