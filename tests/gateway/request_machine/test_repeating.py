"""A request is sent again only where no second run can come of it, or where a second run changes nothing."""

from __future__ import annotations

import pytest
from offline import Caller, OfflineLoop, add_members, offline, turns

from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.repeating import may_repeat
from isochrone.gateway.resilience.retry_budget import Kind, RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

PLAIN = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"),))
REJECTED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n%scontent-length: 13\r\n\r\n"
ERROR = b'{"error":"x"}'
MARK = b"x-isochrone-unprocessed: 1\r\n"


@pytest.mark.parametrize("mark", [b"", MARK], ids=["unmarked", "marked"])
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "not idempotent"])
def test_a_rejection_is_repeated_where_that_is_safe(idempotent: bool, mark: bytes) -> None:
    """A worker also answers 503 for a batch that ran, and an ensemble may reject at its second step."""

    async def run(loop: OfflineLoop) -> None:
        rules = ModelRules(policy="round_robin", retries=RetryRules(idempotent=idempotent))
        gateway = Gateway(GatewayRules(rules), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
        caller = Caller(PLAIN)
        GatewayApplication(gateway).route(PLAIN).handle(caller)  # type: ignore[arg-type]
        await turns()
        (first,) = loop.transports
        first.protocol.data_received(REJECTED % mark + ERROR)
        await turns()
        repeated = idempotent or bool(mark)
        assert len(loop.transports) == (2 if repeated else 1)
        assert caller.status == (0 if repeated else 503)
        await gateway.close()

    offline(run)


def test_the_mark_of_one_attempt_is_not_passed_on_for_the_request() -> None:
    """Another attempt may have run, and the caller would repeat it."""

    async def run(loop: OfflineLoop) -> None:
        rules = ModelRules(policy="round_robin", retries=RetryRules(attempts=2))
        gateway = Gateway(GatewayRules(rules), WireLimits(), seed=1)
        add_members(gateway.fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
        caller = Caller(PLAIN)
        GatewayApplication(gateway).route(PLAIN).handle(caller)  # type: ignore[arg-type]
        await turns()
        full = REJECTED.replace(b"503 Service Unavailable", b"429 Too Many Requests")
        loop.transports[0].protocol.data_received(full % b"" + ERROR)
        await turns()
        loop.transports[1].protocol.data_received(full % MARK + ERROR)
        await turns()
        assert caller.status == 429
        assert b"x-isochrone-unprocessed" not in dict(caller.headers)
        await gateway.close()

    offline(run)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("idempotent", [True, False])
def test_the_rule(kind: Kind, outcome: Outcome, idempotent: bool) -> None:
    may_have_run = outcome in (Outcome.REJECTED, Outcome.LOST, Outcome.FOREIGN)
    expected = outcome is Outcome.NOT_BEGUN or (may_have_run and kind is Kind.STATELESS and idempotent)
    assert may_repeat(RetryRules(idempotent=idempotent), kind, outcome) is expected
