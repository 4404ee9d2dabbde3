"""A gateway is ready without the models of empty pools, once it has read the epoch."""

from __future__ import annotations

import asyncio
from typing import cast

from fleet_records import KEYS, Records, served
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import EpochRecord
from isochrone.engines.base import Engine, Running
from isochrone.engines.supervision.observer import Observer

GATEWAY = ProcessSpec("gw", "gateway", ("gateway",))


class _Running:
    """The part of an engine that observing needs: one gateway runs."""

    def running(self) -> dict[str, Running]:
        return {"gw": Running(9, GATEWAY, 0.0, 0)}


def is_ready(read: int, awaited: list[str]) -> bool:
    """``read``: the epoch that the gateway has read, of epoch 7. No process listens on its port."""
    records = Records(versions=served(m="1"))
    records.put(KEYS.gateway("gw"), GatewayRecord("gw", "127.0.0.1", 1, pid=9, epoch=read))

    def models(epoch: EpochRecord) -> list[str]:
        assert epoch.models.keys() == {"m"}
        return awaited

    observer = Observer(cast(Engine, _Running()), records.view, models)
    return asyncio.run(observer.observe({}))["gw"].ready


def test_a_gateway_is_ready_without_models_that_sleep_once_it_has_read_the_epoch() -> None:
    assert is_ready(7, [])
    assert not is_ready(6, [])


def test_a_gateway_serves_nothing_as_long_as_nobody_knows_what_it_should() -> None:
    """Others must not stop for it. Nothing listens on its port."""
    records = Records(versions=served(m="1"))
    records.put(KEYS.gateway("gw"), GatewayRecord("gw", "127.0.0.1", 1, pid=9))
    records.put(KEYS.seen_epoch("gone"), b"incarnation 9")
    observer = Observer(cast(Engine, _Running()), records.view, lambda epoch: [])
    assert not asyncio.run(observer.observe({}))["gw"].ready


def test_a_gateway_that_does_not_serve_an_awaited_model_is_not_ready() -> None:
    assert not is_ready(7, ["m"])
