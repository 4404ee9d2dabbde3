"""The listeners of a process say when the first of their certificates expires."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.listening.listeners import Listeners
from isochrone.wire.tls.contexts import server_context

CERTIFICATES = Path(__file__).parents[1] / "certificates"


def test_the_first_to_expire_counts_and_listeners_without_tls_do_not() -> None:
    async def scenario() -> None:
        listeners = Listeners(WireLimits())
        application = cast("Any", None)
        listeners.add(application, None)
        assert listeners.snapshot().certificate_expires is None
        contexts = [server_context(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key") for _ in range(2)]
        contexts[0].expires, contexts[1].expires = 200.0, 100.0
        for context in contexts:
            listeners.add(application, context)
        assert listeners.snapshot().certificate_expires == 100.0
        contexts[1].expires = None
        assert listeners.snapshot().certificate_expires == 200.0
        await listeners.stop(0)

    asyncio.run(scenario())
