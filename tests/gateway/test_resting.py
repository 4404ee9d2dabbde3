"""A gateway without requests rests: it sets no timer but one a second, and whatever begins ends the rest.

Timers that fail go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from offline import OfflineLoop, add_members, offline, turns
from plain_requests import PlainRequest
from structlog.testing import capture_logs

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.errors import IsochroneError
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.requests.request import Attempt
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.waiting_room import WaitingRoomRules
from isochrone.settings.wire_limits import WireLimits

SERVED = {"m": {"1": ""}}


@contextlib.asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[None]:
    task = asyncio.ensure_future(gateway.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def let_pass(loop: OfflineLoop, seconds: float) -> None:
    """In steps that are shorter than any timer of a gateway: each is set as often as in real time."""
    for _ in range(round(seconds / 0.001)):
        loop.pass_time(0.001)
        await turns()


class Stream:
    """A streaming call whose deadline has passed."""

    deadline = 0
    held = None
    over = False

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.is_expired = False

    def expire(self) -> None:
        self.is_expired = True
        self._gateway.streams.discard(self)  # type: ignore[arg-type]


class ShellRequest(PlainRequest):
    """A request as a codec gives it to the gateway: it keeps where it was sent, and why it was rejected."""

    address = ""
    error: IsochroneError | None = None

    def send(self, attempt: Attempt) -> None:
        self.address = attempt.replica.endpoint.address

    def reject(self, error: IsochroneError) -> None:
        self.error = error


def arrive(gateway: Gateway, arrived: int, deadline: int = NEVER) -> ShellRequest:
    request = ShellRequest(arrived)
    request.served, request.kind, request.deadline = gateway.fleet.model("m"), Kind.STATELESS, deadline
    request.demand = Demand(deadline=deadline)
    gateway.arrive(request)  # type: ignore[arg-type]
    return request


def test_without_requests_one_timer_a_second_is_set() -> None:
    async def play(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits())
        add_members(gateway.fleet, SERVED, SERVED)
        gateway.fleet.model("m")
        loop.stop_clock()
        async with running(gateway):
            await let_pass(loop, 0.1)
            loop.timers.clear()
            await let_pass(loop, 10)
            assert len(loop.timers) <= 10
            assert min(loop.timers) >= 0.99

    offline(play)


@pytest.mark.interpreted
def test_timers_run_while_something_is_under_way_and_end_with_it() -> None:
    async def play(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits())
        loop.stop_clock()
        async with running(gateway):
            await let_pass(loop, 3)
            stream: Any = Stream(gateway)
            stream.deadline = NEVER
            loop.timers.clear()
            gateway.stream_opened(stream)
            await let_pass(loop, 1)
            assert sum(seconds < 0.01 for seconds in loop.timers) > 100
            gateway.streams.discard(stream)
            await let_pass(loop, 0.2)
            loop.timers.clear()
            await let_pass(loop, 3)
            assert len(loop.timers) <= 3

    offline(play)


@pytest.mark.interpreted
def test_a_stream_that_opens_in_a_rest_keeps_its_deadline() -> None:
    async def play(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits())
        loop.stop_clock()
        async with running(gateway):
            for _ in range(3):
                await let_pass(loop, 1.5)
                assert gateway.resting is not None
                stream: Any = Stream(gateway)
                gateway.stream_opened(stream)
                await let_pass(loop, 0.005)
                assert stream.is_expired

    offline(play)


def test_the_request_that_ends_a_rest_is_placed_by_endpoints_as_they_are_then() -> None:
    now = 1000 * SECOND

    async def play(loop: OfflineLoop) -> None:
        nonlocal now
        gateway = Gateway(GatewayRules(), WireLimits(), clock=lambda: now)
        fleet = gateway.fleet
        add_members(fleet, SERVED, SERVED)
        for member in fleet.members.values():
            member.endpoint.joined_at = 0
        fleet.members["a:1"].endpoint.ejected_until = now + 1
        fleet.look(now)
        before = fleet.endpoint_changes.state_revision

        def wake() -> int:
            gateway.resting = loop.create_future()
            gateway.wake()
            assert gateway.resting.done()
            return fleet.endpoint_changes.state_revision

        now += 99 * MILLISECOND
        # They were looked at a moment ago: requests that come one by one do not each pay for a look.
        assert wake() == before
        now += MILLISECOND
        assert wake() > before

    offline(play)


def test_models_that_are_outdated_in_a_rest_are_rebuilt() -> None:
    async def play(loop: OfflineLoop) -> None:
        gateway = Gateway(GatewayRules(), WireLimits())
        fleet = gateway.fleet
        add_members(fleet, SERVED)
        fleet.model("m")
        loop.stop_clock()
        async with running(gateway):
            for _ in range(3):
                await let_pass(loop, 1.5)
                assert not fleet.rebuilds.is_due
                fleet.rebuild()
                assert fleet.rebuilds.is_due
                await let_pass(loop, 0.03)
                assert not fleet.rebuilds.is_due

    offline(play)


def loop_clock(loop: OfflineLoop) -> Callable[[], int]:
    return lambda: round(loop.time() * SECOND)


def is_sent(gateway: Gateway) -> None:
    add_members(gateway.fleet, SERVED)


def is_held_by_a_switch(gateway: Gateway) -> None:
    add_members(gateway.fleet, SERVED)
    gateway.fleet.model("m")
    gateway.fleet.hold(["m"])


def waits_for_a_worker(gateway: Gateway) -> None:
    fleet = gateway.fleet
    fleet.lead()
    fleet.commit(1, {"m": Commitment(1, "1", {"1": ""})})


@pytest.mark.interpreted
@pytest.mark.parametrize("prepare", [is_sent, is_held_by_a_switch, waits_for_a_worker])
def test_a_request_that_comes_in_a_rest_keeps_its_deadline(prepare: Callable[[Gateway], None]) -> None:
    async def play(loop: OfflineLoop) -> None:
        loop.stop_clock()
        rules = ModelRules(waiting_room=WaitingRoomRules(8, 10 * SECOND))
        clock = loop_clock(loop)
        gateway = Gateway(GatewayRules(models={"m": rules}), WireLimits(), clock=clock)
        prepare(gateway)
        async with running(gateway):
            for _ in range(3):
                await let_pass(loop, 1.5)
                assert gateway.resting is not None
                request = arrive(gateway, clock(), clock() + 50 * MILLISECOND)
                in_flight, held, waiting = bool(request.address), gateway.machine.held, len(gateway.machine.waiting)
                assert in_flight == (prepare is is_sent)
                assert held == (prepare is is_held_by_a_switch)
                assert waiting == (prepare is waits_for_a_worker)
                # Longer than the first sweep: the timers must go on by themselves.
                await let_pass(loop, 0.049)
                assert request.error is None
                await let_pass(loop, 0.006)
                assert request.error is not None
                assert gateway.in_flight == 0

    offline(play)


@pytest.mark.interpreted
def test_a_worker_whose_ejection_ended_before_a_late_request_gets_requests_again() -> None:
    """A request may be placed some time after it arrived: a picker waits for its body."""
    now = 1000 * SECOND

    async def play(loop: OfflineLoop) -> None:
        nonlocal now
        gateway = Gateway(GatewayRules(), WireLimits(), seed=1, clock=lambda: now)
        fleet = gateway.fleet
        add_members(fleet, SERVED, SERVED)
        endpoint = fleet.members["a:1"].endpoint
        ended = endpoint.ejected_until = endpoint.joined_at = now + 5 * SECOND
        fleet.endpoint_changes.states_changed()
        fleet.look(now)

        def place(arrived: int) -> str:
            request = arrive(gateway, arrived)
            gateway.machine.cancelled(request, now)
            return request.address

        assert {place(now) for _ in range(50)} == {"b:1"}
        now = ended - SECOND
        fleet.refresh(now)
        # Its slow start is over as well.
        now = ended + 60 * SECOND
        gateway.resting = loop.create_future()
        place(ended - SECOND)
        gateway.resting = None
        for _ in range(10):
            now += SECOND // 10
            fleet.refresh(now)
        assert "a:1" in {place(now) for _ in range(50)}
        # Nor does a rebuild for a request that arrived still earlier take it out again.
        served = fleet.model("m")
        served.rebuild(ended - 2 * SECOND)
        assert "a:1" in {place(now) for _ in range(50)}
        served.current.balancer.lend(ended - 2 * SECOND)
        assert endpoint in [each.endpoint for each in served.current.balancer.eligible]
        # A part of the replicas that is made for such a request goes by the same instant.
        part = served.within(served.current, frozenset({"a:1"}), ended - SECOND)
        assert [each.endpoint for each in part.balancer.eligible] == [endpoint]

    offline(play)


def test_a_rest_ends_without_a_look_while_nothing_can_have_ended() -> None:
    now = 1000 * SECOND

    async def play(loop: OfflineLoop) -> None:
        nonlocal now
        gateway = Gateway(GatewayRules(), WireLimits(), clock=lambda: now)
        fleet = gateway.fleet
        add_members(fleet, SERVED, SERVED)

        def looks() -> bool:
            nonlocal now
            now += SECOND
            gateway.resting = loop.create_future()
            gateway.wake()
            return fleet.endpoint_changes.looked_at == now

        assert looks(), "the first one"
        assert not looks()
        fleet.members["a:1"].endpoint.ejected_until = now + 3 * SECOND + 1
        fleet.endpoint_changes.states_changed()
        assert [looks() for _ in range(5)] == [True, False, False, True, False]
        fleet.members["b:1"].endpoint.joined_at = now
        fleet.health_changed(fleet.members["b:1"])
        slow_start = fleet.rules.defaults.balancer.slow_start_ns // SECOND
        assert slow_start > 2
        assert [looks() for _ in range(slow_start + 1)] == [True, *[False] * (slow_start - 2), True, False]
        fleet.configure(fleet.rules)
        assert looks()

    offline(play)


def sweep_fails(gateway: Gateway, fail: Callable[..., Any]) -> None:
    gateway._sweep = fail  # type: ignore[method-assign]


def refresh_fails(gateway: Gateway, fail: Callable[..., Any]) -> None:
    gateway.fleet.tick = fail  # type: ignore[method-assign]


def judgement_fails(gateway: Gateway, fail: Callable[..., Any]) -> None:
    gateway.outliers.tick = fail  # type: ignore[method-assign]


def rebuild_fails(gateway: Gateway, fail: Callable[..., Any]) -> None:
    gateway.fleet.rebuilds.steps = fail  # type: ignore[method-assign]


@pytest.mark.interpreted
@pytest.mark.parametrize("break_timer", [sweep_fails, refresh_fails, judgement_fails, rebuild_fails])
def test_timers_that_fail_go_on_and_end_with_the_gateway(break_timer: Callable[..., None]) -> None:
    async def play(loop: OfflineLoop) -> None:
        loop.stop_clock()
        gateway = Gateway(GatewayRules(), WireLimits(), clock=loop_clock(loop))
        fleet = gateway.fleet
        add_members(fleet, SERVED, SERVED)
        fleet.model("m")
        failures = 0

        def fail(*arguments: Any) -> Any:
            nonlocal failures
            failures += 1
            raise ValueError("a fault")

        break_timer(gateway, fail)
        before = asyncio.all_tasks()
        with capture_logs() as logs:
            async with running(gateway):
                stream: Any = Stream(gateway)
                gateway.stream_opened(stream)
                fleet.rebuild()
                await let_pass(loop, 3)
                assert failures > 1
                assert {each["event"] for each in logs} == {"a timer of the gateway failed unexpectedly"}
                assert len(logs) == failures
                for owner in (gateway, fleet, fleet.rebuilds, gateway.outliers):
                    for name in ("_sweep", "tick", "steps"):
                        vars(owner).pop(name, None)
                failures, looked_at = 0, fleet.endpoint_changes.looked_at
                await let_pass(loop, 1.2)
                assert not failures
                assert stream.is_expired
                assert not fleet.rebuilds.is_due
                assert fleet.endpoint_changes.looked_at > looked_at
        assert asyncio.all_tasks() == before

    offline(play)
