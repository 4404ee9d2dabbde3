"""The record of a pool's size: what the status shows is what the autoscaler decided lately."""

from __future__ import annotations

import asyncio
import time

from planned_plant import RecordsOfLeader

from fleet_records import KEYS, Records, served
from isochrone.control.leader.autoscaling import Autoscaling
from isochrone.control.scaling.reading.fleet_counters import FleetReading, GatewayCounts, RequestCounts
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import PoolSizeRecord

FLEET = """
name: plant
pools:
  cpu: {workers: 1, max: 4, autoscale: true}
models: {m: {version: 1}}
"""


class SizedPool:
    """A pool without workers that report: its size is held, whatever the load."""

    def __init__(self) -> None:
        self.records = Records(FLEET, served(m="1"))
        self.records.put(KEYS.gateway("gw"), GatewayRecord("gw", "127.0.0.1", 1, 2))
        self.now = 1000.0
        self.received = 0
        self.autoscaling = Autoscaling(RecordsOfLeader(self.records), lambda: None, lambda: self.now)

    def read(self, requests: int | None) -> PoolSizeRecord:
        """The record after a reading; None: the gateway does not answer."""
        self.received += requests or 0
        counts = {"gw": GatewayCounts("1", {"m": RequestCounts(self.received)})} if requests is not None else {}

        async def course() -> None:
            await self.autoscaling.reconcile(self.records.view, {})
            await self.autoscaling.take(FleetReading(time.monotonic(), counts, {}))
            await self.autoscaling.reconcile(self.records.view, {})

        asyncio.run(course())
        return self.records.view.pool_sizes["cpu"]


def test_the_record_follows_the_reason_at_once_and_the_figures_after_ten_seconds() -> None:
    pool = SizedPool()
    first = pool.read(None)
    assert (first.workers, first.reason, first.at) == (1, "stale", 1000.0)
    assert "the load is not known" in first.detail

    pool.read(1)
    pool.now = 1001.0
    known = pool.read(5)
    assert (known.workers, known.reason) == (1, "unmeasured")
    assert "requests/s" in known.detail

    begun = known.at
    pool.now = begun + 10.0
    assert pool.read(500) == known, "the same reason with other figures, which are recent"
    pool.now = begun + 10.1
    later = pool.read(50_000)
    assert later.reason == "unmeasured"
    assert later.detail != known.detail
    assert later.at == pool.now
    assert not list(pool.records.view.events()), "the size has not changed"


def test_a_clock_that_was_set_back_keeps_no_old_figures() -> None:
    pool = SizedPool()
    pool.read(1)
    known = pool.read(5)
    pool.now -= 500.0
    assert pool.read(500).at == pool.now != known.at
