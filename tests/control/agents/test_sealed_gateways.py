"""A gateway of a fleet with a key, and records that somebody without the key writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from isochrone.control.agents.gateway_link import GatewayLink
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord
from isochrone.control.state.rollout_records import SwitchRecord
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.store.base import Put
from isochrone.store.opening import open_store
from isochrone.store.seals import Seal

KEYS = Keys("plant")
OWN = GatewayRecord("g", "127.0.0.1", 8000, incarnation="1", pid=1)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 (the condition is a state of the gateway)
        await asyncio.sleep(0.005)


def test_what_others_write_moves_no_quota_no_epoch_and_holds_nothing(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'fleet.db'}"

    async def scenario() -> None:
        gateway, outside = Gateway(GatewayRules(), WireLimits()), open_store(url)
        inside = open_store(url, seal=Seal((b"k" * 32,)))
        link = GatewayLink(inside, KEYS, gateway, OWN, lambda value: GatewayRules())
        await link.start()
        switch = SwitchRecord("r1.1", "holding", ("m",), 0)
        forged = {
            **{KEYS.gateway(f"rogue-{number}"): encode(OWN) for number in range(99)},
            KEYS.drain("g"): encode(EventRecord(0.0, "supervisor", "drain", "g")),
            KEYS.switch: encode(switch),
            KEYS.epoch: encode(EpochRecord(9, {"m": Assignment("2")})),
        }
        outcome = await outside.transact((), [Put(key, value) for key, value in forged.items()])
        await link.mirror.catch_up(outcome.revision)
        # The faults are known once the change has been applied.
        await until(lambda: KEYS.epoch in link._records.faults.reasons)
        assert gateway.fleet._quota_share == 1.0
        assert not gateway.draining
        assert gateway.fleet.epoch == 0
        assert not gateway.fleet.holding
        # A genuine gateway counts, and goes on counting while its record is a forged one.
        genuine = Put(KEYS.gateway("h"), encode(OWN))
        for writer in (inside, outside):
            outcome = await writer.transact((), [genuine])
            await link.mirror.catch_up(outcome.revision)
            await until(lambda: gateway.fleet._quota_share == 0.5)
        await link.stop()
        await gateway.close()
        await outside.close()

    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())
