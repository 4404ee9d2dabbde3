"""Readings of a fleet's counters: a process that fails in any way has said nothing, and the others are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from fleet_records import KEYS, Records
from isochrone.control.scaling.reading.fleet_counters import FleetReading, ModelConfiguration, RequestCounts
from isochrone.control.scaling.reading.fleet_reading import FleetReader
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord

METRICS = (
    b'# TYPE isochrone_gateway_requests_total counter\nisochrone_gateway_requests_total{model="m"} 7.0\n'
    b"# TYPE isochrone_gateway_rejections_total counter\n# TYPE isochrone_gateway_waiting gauge\n"
    b"# TYPE isochrone_gateway_worker_round_trip_seconds gauge\n"
    b'isochrone_gateway_worker_round_trip_seconds{worker="worker-1:8000"} 0.002\n'
    b'isochrone_gateway_worker_round_trip_seconds{worker="other:8000"} 0.003\n'
)
DURATION = {"count": 3, "ns": 30}
BATCH = {"batch_size": 1, "compute_input": DURATION, "compute_infer": DURATION, "compute_output": DURATION}
MODEL = {"name": "a/b", "version": "1", "inference_stats": {"success": DURATION, "queue": DURATION}}
STATISTICS = {"model_stats": [{**MODEL, "batch_stats": [BATCH]}, {**MODEL, "name": "unused"}]}

POOLS = ("",)

Answer = Callable[[httpx.Request], Coroutine[Any, Any, httpx.Response]]


async def answer(request: httpx.Request) -> httpx.Response:
    """As a well process does."""
    if request.url.path == "/metrics":
        return httpx.Response(200, content=METRICS)
    if request.url.path == "/v2/models/stats":
        load = {"endpoint-load-metrics": "TEXT named_metrics.in_flight=2"}
        return httpx.Response(200, json=STATISTICS, headers=load)
    return httpx.Response(200, json={"instance_group": [{"count": 4}]})


def fleet(workers: int = 2, incarnation: str = "1") -> Records:
    records = Records(None)
    for number in range(workers):
        name = f"worker-{number}"
        records.put(KEYS.workers + name, WorkerRecord(name, name, 8000, 8001, incarnation=incarnation))
    for name in ("gateway-0", "gateway-1"):
        records.put(KEYS.gateways + name, GatewayRecord(name, name, 8000, 8002, incarnation=incarnation))
    return records


def reader_of(handler: Answer) -> FleetReader:
    return FleetReader(httpx.AsyncClient(transport=httpx.MockTransport(handler)))


def read(handler: Answer, records: Records) -> FleetReading:
    async def run() -> FleetReading:
        reader = reader_of(handler)
        try:
            return await reader.read(records.view, POOLS)
        finally:
            await reader.close()

    return asyncio.run(run())


def test_all_gateways_and_workers_are_read() -> None:
    reading = read(answer, fleet())
    gateway, worker = reading.gateways["gateway-1"], reading.workers["worker-1"]
    assert gateway is not None
    assert (gateway.incarnation, gateway.models) == ("1", {"m": RequestCounts(7)})
    assert gateway.round_trips == {"worker-1": 0.002}, "by the names of registered workers"
    assert worker is not None
    assert worker.incarnation == "1"
    assert worker.models["a/b"]["1"].configuration == ModelConfiguration(4)
    assert worker.models["unused"]["1"].configuration is None
    assert worker.in_flight == 2
    assert reading.instant <= min(gateway.instant or 0, worker.instant or 0), "each page has the instant of its arrival"


async def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


async def broken_name(request: httpx.Request) -> httpx.Response:
    raise UnicodeError("label too long")


async def forbidden(request: httpx.Request) -> httpx.Response:
    return httpx.Response(403, content=METRICS if request.url.path == "/metrics" else json.dumps(STATISTICS))


async def something_else(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"\xff<html>")


@pytest.mark.parametrize("fault", [refused, broken_name, forbidden, something_else])
def test_a_process_that_fails_has_said_nothing_and_the_others_have(fault: Answer) -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        return await (fault if request.url.host.endswith("-0") else answer)(request)

    reading = read(handler, fleet())
    assert reading.gateways["gateway-0"] is None
    assert reading.workers["worker-0"] is None
    assert reading.gateways["gateway-1"] is not None
    assert reading.workers["worker-1"] is not None


def test_a_process_that_never_answers_holds_the_reading_up_for_a_second_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.control.scaling.reading.fleet_reading.SECONDS", 0.05)

    async def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "worker-0":
            await asyncio.Event().wait()
        return await answer(request)

    reading = read(handler, fleet())
    assert reading.workers["worker-0"] is None
    assert reading.workers["worker-1"] is not None


def test_a_gateway_without_a_metrics_page_is_not_asked() -> None:
    records = Records(None)
    records.put(KEYS.gateways + "gateway-1", GatewayRecord("gateway-1", "gateway-1", 8000))
    reading = read(refused, records)
    assert reading.gateways == {"gateway-1": None}
    assert reading.without_page == {"gateway-1"}


def test_at_most_64_are_asked_at_the_same_time() -> None:
    now = most = 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(5):
            await asyncio.sleep(0)
        now -= 1
        return await answer(request)

    reading = read(handler, fleet(workers=200))
    assert most == 64
    assert all(each is not None for each in reading.workers.values())


def test_configurations_are_asked_once_for_each_process() -> None:
    asked: list[str] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/config"):
            asked.append(request.url.raw_path.decode())
        return await answer(request)

    async def run() -> None:
        reader = reader_of(handler)
        for incarnation in ("1", "1", "2", "2"):
            reading = await reader.read(fleet(workers=1, incarnation=incarnation).view, POOLS)
            worker = reading.workers["worker-0"]
            assert worker is not None
            assert worker.models["a/b"]["1"].configuration == ModelConfiguration(4)
        await reader.close()

    asyncio.run(run())
    assert asked == ["/v2/models/a%2Fb/versions/1/config"] * 2


def test_configurations_of_pools_that_are_not_read_this_time_are_kept() -> None:
    asked: list[str] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/config"):
            asked.append(request.url.host)
        return await answer(request)

    records = Records(None)
    for pool in ("one", "other"):
        records.put(KEYS.workers + pool, WorkerRecord(pool, pool, 8000, 8001, incarnation="1", pool=pool))

    async def run() -> None:
        reader = reader_of(handler)
        for pools in (("one",), ("other",), ("one", "other"), ("one",)):
            reading = await reader.read(records.view, pools)
            assert reading.workers.keys() == set(pools)
            for each in reading.workers.values():
                assert each is not None
                assert each.models["a/b"]["1"].configuration == ModelConfiguration(4)
        await reader.close()

    asyncio.run(run())
    assert asked == ["one", "other"]


def test_one_configuration_counts_for_all_workers_of_a_pool() -> None:
    asked: list[str] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/config"):
            asked.append(request.url.host)
        return await answer(request)

    reading = read(handler, fleet(workers=20))
    assert len(asked) == 1
    found = [each.models["a/b"]["1"].configuration for each in reading.workers.values() if each is not None]
    assert found == [ModelConfiguration(4)] * 20


def test_workers_of_the_pools_and_of_those_that_share_a_model_are_read() -> None:
    records = Records(None)
    for pool in ("one", "shares", "other"):
        records.put(KEYS.workers + pool, WorkerRecord(pool, pool, 8000, 8001, incarnation="1", pool=pool))
    models = {"m": Assignment("1", pools=("one", "shares")), "n": Assignment("1", pools=("shares", "other"))}
    records.put(KEYS.epoch, EpochRecord(1, models))

    async def run() -> FleetReading:
        reader = reader_of(answer)
        try:
            return await reader.read(records.view, ("one",))
        finally:
            await reader.close()

    assert asyncio.run(run()).workers.keys() == {"one", "shares"}
