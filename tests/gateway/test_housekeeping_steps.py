"""Long work is done in bounded steps, one in each turn of the loop; what it changes holds before it is finished."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from offline import add_members
from plain_requests import PlainRequest, plain_request

from isochrone.clock import SECOND
from isochrone.gateway import request_shell
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.housekeeping import Housekeeping, finished
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits

NAMES = [f"m{number}" for number in range(40)]


class TestHousekeeping:
    def test_several_works_share_the_turns(self) -> None:
        turn = 0
        done: list[tuple[int, str]] = []

        def work(name: str, steps: int) -> Generator[None, None, str]:
            for _ in range(steps):
                done.append((turn, name))
                yield
            return name

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async def main() -> list[str]:
            counting = asyncio.ensure_future(count())
            housekeeping = Housekeeping()
            found = await asyncio.gather(*(housekeeping.do(work(name, 5)) for name in "abc"))
            counting.cancel()
            return found

        assert asyncio.run(main()) == ["a", "b", "c"]
        turns = [each for each, _ in done]
        assert len(set(turns)) == len(turns) == 15, "never two steps in a turn"
        assert [name for _, name in done] == ["a", "b", "c"] * 5, "none waits for the end of another"

    def test_one_that_fails_or_is_given_up_does_not_stop_the_others(self) -> None:
        ended: list[str] = []

        def endless() -> Generator[None, None, None]:
            try:
                while True:
                    yield
            finally:
                ended.append("endless")

        def failing() -> Generator[None, None, None]:
            yield
            raise ValueError("wrong")

        def short() -> Generator[None, None, int]:
            for _ in range(5):
                yield
            return 7

        async def main() -> None:
            housekeeping = Housekeeping()
            first, second, third = (
                asyncio.ensure_future(each)
                for each in (housekeeping.do(endless()), housekeeping.do(failing()), housekeeping.do(short()))
            )
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="wrong"):
                await second
            first.cancel()
            assert await third == 7
            assert ended == ["endless"]
            # It goes on when it has rested.
            assert await housekeeping.do(short()) == 7

        asyncio.run(main())


class Shell(Gateway):
    """Executes nothing, and keeps what it was told."""

    told: list[Instruction]

    def execute(self, instructions: list[Instruction]) -> None:
        self.told += instructions


def make_shell() -> Shell:
    now = SECOND
    shell = Shell(GatewayRules(), WireLimits(), seed=1, clock=lambda: now)
    shell.told = []
    add_members(shell.fleet, *[{name: {"1": ""} for name in NAMES}] * 3)
    return shell


def arrive(shell: Shell, name: str, number: int) -> PlainRequest:
    request = plain_request(shell.fleet.model(name), number, SECOND)
    shell.machine.arrive(request, SECOND)
    return request


def place(request: PlainRequest) -> Endpoint:
    return request.attempts[-1].replica.endpoint


@pytest.mark.interpreted
class TestLostEndpoint:
    def lose_one(self) -> tuple[Shell, Endpoint, list[PlainRequest]]:
        """A shell with a request of each model at an endpoint that has just been found to be lost."""
        shell = make_shell()
        lost = shell.fleet.members["a:1"].endpoint
        requests = [arrive(shell, name, number) for number, name in enumerate(NAMES * 5)]
        there = [request for request in requests if place(request) is lost]
        assert len(there) > 20
        lost.healthy = False
        shell.fleet.health_changed(lost.handle)
        return shell, lost, there

    def test_it_gets_no_request_while_the_others_are_still_being_moved(self) -> None:
        shell, lost, there = self.lose_one()
        number = 1000
        for _ in shell._leave(lost, SECOND):
            for name in NAMES:
                number += 1
                assert place(arrive(shell, name, number)) is not lost
        assert all(place(request) is not lost for request in there)

    def test_a_step_moves_a_few(self) -> None:
        shell, lost, there = self.lose_one()
        moved = []
        steps = shell._leave(lost, SECOND)
        while True:
            before = len(shell.told)
            is_over = next(steps, "over") == "over"
            moved.append(sum(do is Do.SEND for do, _, _ in shell.told[before:]))
            if is_over:
                break
        assert max(moved) <= request_shell._LEAVING_PER_TURN
        assert sum(moved) == len(there)

    def test_one_that_is_answered_meanwhile_is_left_alone(self) -> None:
        shell, lost, there = self.lose_one()
        steps = shell._leave(lost, SECOND)
        next(steps)
        last = there[-1]
        shell.machine.cancelled(last, SECOND)
        finished(steps)
        assert not [request for do, request, _ in shell.told if do is Do.SEND and request is last]

    def test_what_is_sent_there_after_it_has_returned_stays(self) -> None:
        shell, lost, there = self.lose_one()
        steps = shell._leave(lost, SECOND - 1)
        finished(steps)
        assert shell.told == [], "sent after the loss"
        assert all(place(request) is lost for request in there)

    def test_nothing_is_done_for_an_endpoint_without_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shell = make_shell()
        started: list[Any] = []
        monkeypatch.setattr(shell._tasks, "start", started.append)
        shell._member_lost(shell.fleet.members["a:1"])
        assert started == []


@pytest.mark.interpreted
def test_a_thousand_models_are_ticked_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = make_shell()
    for name in NAMES:
        arrive(shell, name, 1)
    looked: list[str] = []
    monkeypatch.setattr("isochrone.gateway.fleet.fleet._TICKED_PER_TURN", 60)
    monkeypatch.setattr(
        "isochrone.gateway.fleet.served_model.ServedModel.tick", lambda self, now: looked.append(self.name)
    )
    steps = []
    for _ in shell.fleet.tick(2 * SECOND):
        steps.append(len(looked))
        looked.clear()
    assert len(steps) > 5
    assert max(steps) <= 60 // 16
