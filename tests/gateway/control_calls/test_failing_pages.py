"""The gateway's own pages answer whatever goes wrong: an exchange without an answer delays the end of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from isochrone.background_tasks import BackgroundTasks
from isochrone.gateway.control_calls.refresh import RefreshApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.metrics import GatewayMetricsApplication
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.observe.loop_lag import LoopLag
from isochrone.observe.snapshot import WireSnapshot
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Exchange, Head


class Caller:
    """Notes the status and the body of its answer."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.headers, self.body = status, dict(headers), b"".join(map(bytes, body))


class Get:
    method, target = b"GET", b"/metrics"

    def __init__(self, accept: bytes) -> None:
        self._accept = accept

    def get(self, name: bytes) -> bytes | None:
        return self._accept if name == b"accept" else None


def _answer(make: Callable[[Gateway], tuple[Any, BackgroundTasks]], accept: bytes = b"") -> Caller:
    async def run() -> Caller:
        application, tasks = make(Gateway(GatewayRules(), WireLimits(), seed=1))
        caller = Caller()
        application.route(cast("Head", Get(accept))).handle(cast("Exchange", caller))
        await tasks.finish()
        return caller

    return asyncio.run(run())


def _metrics(gateway: Gateway) -> tuple[Any, BackgroundTasks]:
    application = GatewayMetricsApplication(gateway, lambda: WireSnapshot(0, 0, 0, 0, 0, 0, LoopLag().histogram()))
    return application, application._rendering


def _refresh(gateway: Gateway) -> tuple[Any, BackgroundTasks]:
    application = RefreshApplication(gateway)
    return application, application._tasks


@pytest.mark.parametrize("accept", [b"", b"application/openmetrics-text; version=abc", b"application/openmetrics-text"])
def test_every_accept_header_gets_a_page(accept: bytes) -> None:
    caller = _answer(_metrics, accept)
    assert caller.status == 200
    assert b"isochrone_gateway_" in caller.body


async def _fails(*_: object) -> None:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("make", "broken"), [(_metrics, (GatewayMetricsApplication, "_render")), (_refresh, (Gateway, "read_indexes"))]
)
def test_an_unexpected_error_is_an_answer(
    make: Callable[[Gateway], tuple[Any, BackgroundTasks]],
    broken: tuple[type, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing: Callable[..., Coroutine[Any, Any, None]] = _fails
    monkeypatch.setattr(*broken, failing)
    caller = _answer(make)
    assert caller.status == 500
    assert b"boom" in caller.body
