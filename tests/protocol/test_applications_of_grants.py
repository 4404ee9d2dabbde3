"""What an application keeps for a grant ends with the grant: strangers can send any number of credentials."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from isochrone.errors import Unauthenticated
from isochrone.protocol.applications.application import ProtocolApplication
from isochrone.protocol.services.guarded_service import GuardedService
from isochrone.secure.access.grants import Evidence, Grant
from isochrone.secure.access.identity import ANONYMOUS
from isochrone.secure.access.policy import Policy
from isochrone.wire.exchange import Head


class Service:
    """As much as routers keep of one."""

    def __getattr__(self, name: str) -> Any:
        return self


def grant_of(number: int) -> Grant:
    return Grant(Evidence(b"Bearer %d" % number), ANONYMOUS, Policy(), "")


def test_nothing_is_left_of_grants_that_nobody_holds() -> None:
    application = ProtocolApplication(Service(), 1 << 20)  # type: ignore[arg-type]
    held = []
    for number in range(100):
        head = Head(b"POST", b"/v2/models/m/infer", ())
        head.grant = grant_of(number)
        head.route = application.route(head)
        if number % 50 == 0:
            held.append(head)
    del head
    gc.collect()
    assert len(application._granted) == len(held)
    held.clear()
    gc.collect()
    assert not application._granted


def test_a_request_whose_grant_is_gone_is_refused() -> None:
    service = GuardedService(Service(), grant_of(1))  # type: ignore[arg-type]
    gc.collect()
    with pytest.raises(Unauthenticated):
        service.declared_inputs("m", "")
