"""A leader of the past changes nothing on a worker that a later one has spoken to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isochrone.errors import PermissionDenied
from isochrone.protocol.access.fencing import Fence, term_of
from isochrone.protocol.rest.router import RestRouter
from isochrone.wire.exchange import Head


def test_terms_only_grow() -> None:
    fence = Fence()
    for term in (3, 3, 7, 7):
        fence.check(term)
    with pytest.raises(PermissionDenied, match=r"later leader \(term 7\).*term 3"):
        fence.check(3)
    fence.check(8)


@pytest.mark.parametrize(("value", "term"), [(b"12", 12), (b"-1", None), (b"x", None), (b"9" * 30, None), (None, None)])
def test_what_a_head_says(value: bytes | None, term: int | None) -> None:
    headers = ((b"x-isochrone-term", value),) if value is not None else ()
    assert term_of(Head(b"POST", b"/", headers)) == term


class Loading:
    """A service that notes what it is asked to load."""

    shared_memory = None
    control_token = ""

    def __init__(self) -> None:
        self.fence = Fence()
        self.loaded: list[str] = []

    async def load(self, name: str, parameters: Any) -> None:
        self.loaded.append(name)


class Answered:
    """An exchange that keeps its status."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.body = b"{}"
        self.status = 0

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status = status


def test_a_head_that_was_routed_before_is_checked_again() -> None:
    """A connection remembers the route of a head: a paused leader's next call must not pass by that."""

    async def run() -> list[int]:
        service: Any = Loading()
        router = RestRouter(service, 1024)
        target = b"/v2/repository/models/m/load"
        old, new = (Head(b"POST", target, ((b"x-isochrone-term", term),)) for term in (b"3", b"4"))
        past, present = router.route(old), router.route(new)
        statuses = []
        for route, head in ((past, old), (present, new), (past, old), (present, new)):
            exchange: Any = Answered(head)
            route.handle(exchange)
            for _ in range(5):
                await asyncio.sleep(0)
            statuses.append(exchange.status)
        assert len(service.loaded) == 3
        return statuses

    assert asyncio.run(run()) == [200, 200, 403, 200]
