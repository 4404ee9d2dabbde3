"""Requests that wait for a strict switch: they go on in order, one that fails harms no other, none waits too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from offline import add_members
from structlog.testing import capture_logs

from isochrone.clock import MILLISECOND, NEVER, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError, Unavailable
from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.requests.held import MOST, Held
from isochrone.gateway.requests.request import Request
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.traffic.fields import Fields
from isochrone.settings.wire_limits import WireLimits


class NoFields:
    def get(self, name: bytes) -> bytes | None:
        return None


class Noting(CallerRequest):
    """Notes its end; a request named "broken" cannot be sent, and one named "lost" cannot even be rejected."""

    def __init__(self, name: str, scene: Scene, timeout_ns: int = 0) -> None:
        super().__init__(scene.now)
        self.name, self.scene = name, scene
        self.gateway = scene.gateway
        self.served = scene.gateway.fleet.model("m")
        self.demand = self.served.plain_demand
        if timeout_ns:
            self.deadline = self.arrived + timeout_ns

    @property
    def head(self) -> Fields:
        return NoFields()

    @property
    def body(self) -> bytes:
        return b""

    def send(self, attempt: UpstreamAttempt) -> None:
        if self.name in ("broken", "lost"):
            raise ValueError("a fault of ours")
        self.scene.sent.append((self.name, attempt.replica_set.version))

    def abort(self) -> None:
        self.scene.aborted.append(self.name)

    def reject(self, error: IsochroneError) -> None:
        if self.name == "lost":
            raise ValueError("another one")
        self.scene.rejected.append((self.name, error))
        if self.scene.on_rejection is not None:
            self.scene.on_rejection()


for _name in ("answer", "cut_off", "copy", "outcome", "is_version_gone", "load_report", "offer", "streams_answer"):
    setattr(Noting, _name, None)
for _name in ("begin_streaming", "pass_on"):
    setattr(Noting, _name, None)
Noting.__abstractmethods__ = frozenset()


class Scene:
    """A led gateway that switches model m."""

    def __init__(self) -> None:
        self.gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
        add_members(self.gateway.fleet, {"m": {"1": "", "2": ""}})
        self.gateway.fleet.lead()
        self.commit(1, "1")
        self.gateway.fleet.hold(["m"])
        self.now = now_ns()
        self.sent: list[tuple[str, str]] = []
        self.rejected: list[tuple[str, IsochroneError]] = []
        self.aborted: list[str] = []
        self.on_rejection: Callable[[], None] | None = None

    def commit(self, epoch: int, version: str) -> None:
        self.gateway.fleet.commit(epoch, {"m": Commitment(epoch, version, {"1": "", "2": ""})})

    def arrive(self, name: str, timeout_ns: int = 0) -> Noting:
        request = Noting(name, self, timeout_ns)
        self.gateway.arrive(request)
        return request

    @property
    def held(self) -> int:
        return self.gateway.machine.held

    def expire(self, now: int) -> None:
        self.gateway.execute(self.gateway.machine.expire_held(now))


def test_they_go_on_in_order_by_the_new_version() -> None:
    scene = Scene()
    for name in ("first", "second"):
        scene.arrive(name)
    scene.commit(2, "2")
    assert scene.sent == [], "the commit alone lets nothing through"
    assert scene.gateway.release() == 2
    assert scene.sent == [("first", "2"), ("second", "2")]
    assert scene.gateway.fleet.hold_times.total == 1
    assert scene.gateway.fleet.model("m").plain


def test_one_that_fails_is_rejected_and_the_others_go_on() -> None:
    scene = Scene()
    for name in ("first", "broken", "lost", "second"):
        scene.arrive(name)
    with capture_logs() as lines:
        scene.gateway.release()
    assert [name for name, _ in scene.sent] == ["first", "second"]
    ((name, error),) = scene.rejected
    assert name == "broken"
    assert "a fault of ours" in str(error)
    assert scene.aborted == ["lost"]
    assert [line["log_level"] for line in lines if line["log_level"] == "error"] == ["error"] * 3


def test_they_can_be_rejected_while_the_switch_goes_on() -> None:
    scene = Scene()
    for name in ("lost", "first"):
        scene.arrive(name)
    with capture_logs():
        scene.gateway.reject_held("it takes too long")
    ((name, error),) = scene.rejected
    assert (name, str(error)) == ("first", "it takes too long")
    assert scene.held == 0


def test_a_caller_that_left_is_forgotten() -> None:
    scene = Scene()
    scene.arrive("gone").abandoned()
    assert scene.gateway.release() == 0
    assert scene.sent == []


def test_none_waits_past_its_own_deadline() -> None:
    scene = Scene()
    scene.arrive("late", 30 * MILLISECOND)
    scene.arrive("hasty", 10 * MILLISECOND)
    scene.arrive("patient")
    scene.arrive("gone", 10 * MILLISECOND).abandoned()
    scene.expire(scene.now + 10 * MILLISECOND - 1)
    assert scene.rejected == []
    scene.expire(scene.now + 10 * MILLISECOND)
    ((name, error),) = scene.rejected
    assert name == "hasty"
    assert isinstance(error, DeadlineExceeded)
    assert "waited 10.0 ms for a version to be switched" in str(error)
    assert scene.gateway.release() == 2
    assert [name for name, _ in scene.sent] == ["late", "patient"]
    scene.expire(NEVER)
    assert len(scene.rejected) == 1


def test_no_more_wait_than_there_is_room_for() -> None:
    held = Held()
    for _ in range(MOST):
        held.add(Request(0))
    with pytest.raises(Unavailable, match="try again"):
        held.add(Request(0))


def test_the_sweep_of_a_gateway_rejects_those_whose_deadline_has_passed() -> None:
    async def play() -> None:
        scene = Scene()
        rejected = asyncio.Event()
        scene.on_rejection = rejected.set
        scene.arrive("hasty", 1)
        scene.arrive("patient")
        sweep = asyncio.ensure_future(scene.gateway.run())
        try:
            async with asyncio.timeout(100):
                await rejected.wait()
        finally:
            sweep.cancel()
        assert [name for name, _ in scene.rejected] == ["hasty"]
        assert scene.held == 1

    asyncio.run(play())
