"""KEDA learns from the store that requests wait for a worker: at once, over real gRPC, without a reading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from bench.ports import ports_in_a_row
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.scaling.keda import messages
from isochrone.control.scaling.keda.pool_load import PoolLoad
from isochrone.control.scaling.keda.scaler import KedaScaler, serve_scaler
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord, WaitingRecord
from isochrone.store.base import Delete, Put
from isochrone.store.mirror import Mirror
from isochrone.store.sqlite.store import SqliteStore

KEYS = Keys("plant")
SECONDS = 60.0
#: No second reading comes in a test.
NEVER = 3600.0
FLEET = """
name: plant
pools:
  cpu: {workers: 1}
  gpu: {workers: 1}
"""
PAGE = b"""# TYPE isochrone_gateway_waiting gauge
isochrone_gateway_waiting{model="m"} 3
"""


class Scaled:
    """The scaler of one controller, its mirror, and a gateway's own connection to the store."""

    def __init__(self, directory: Path) -> None:
        path = directory / "fleet.db"
        self.store = SqliteStore("sqlite:fleet.db", path)
        self.gateways_store = SqliteStore("sqlite:fleet.db", path)
        self.mirror = Mirror(self.store, KEYS.prefix)
        self.scaler = KedaScaler(self.mirror, KEYS, reading_seconds=NEVER)
        self.port = ports_in_a_row(1)

    async def __aenter__(self) -> Scaled:
        fleet = parse_fleet(FLEET, "fleet.yaml", Path())
        epoch = EpochRecord(1, {"m": Assignment("1", pools=("cpu",)), "other": Assignment("1", pools=("gpu",))})
        spec = fleet.model_dump(mode="json")
        await self.write(Put(KEYS.fleet, encode(FleetRecord(1, FLEET, spec))), Put(KEYS.epoch, encode(epoch)))
        await self.mirror.start()
        self.serving = asyncio.ensure_future(serve_scaler(self.scaler, "127.0.0.1", self.port))
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        await self.channel.channel_ready()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.channel.close()
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        assert self.mirror.on_change == []
        await self.mirror.stop()
        await self.store.close()
        await self.gateways_store.close()

    async def write(self, *operations: Put | Delete) -> None:
        await self.gateways_store.transact((), operations)

    async def record(self, gateway: str = "g", **models: int) -> None:
        """A gateway's record, as it writes it; returns when the controller has it."""
        outcome = await self.gateways_store.transact(
            (), (Put(KEYS.waiting_at(gateway), encode(WaitingRecord(models))),)
        )
        await self.mirror.catch_up(outcome.revision)

    def stream(self, pool: str) -> Any:
        return self.channel.unary_stream(
            f"/{messages.SERVICE}/StreamIsActive",
            messages.ScaledObjectRef.SerializeToString,
            messages.IsActiveResponse.FromString,
        )(_trigger(pool))

    async def is_active(self, pool: str) -> bool:
        answer = await self._call("IsActive", _trigger(pool), messages.IsActiveResponse)
        return bool(answer.result)

    async def requests(self, pool: str) -> float:
        request = messages.GetMetricsRequest(scaledObjectRef=_trigger(pool), metricName="requests_in_pool")
        (value,) = (await self._call("GetMetrics", request, messages.GetMetricsResponse)).metricValues
        return float(value.metricValueFloat)

    async def _call(self, method: str, request: Any, response: Any) -> Any:
        made = self.channel.unary_unary(
            f"/{messages.SERVICE}/{method}", type(request).SerializeToString, response.FromString
        )
        return await made(request)


def _trigger(pool: str) -> Any:
    return messages.ScaledObjectRef(name="scaled", namespace="space", scalerMetadata={"pool": pool})


def run(scenario: Callable[[Scaled], Awaitable[None]], directory: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), Scaled(directory) as scaled:
            await scenario(scaled)

    asyncio.run(main())


def test_the_stream_tells_keda_without_a_further_reading(tmp_path: Path) -> None:
    async def scenario(scaled: Scaled) -> None:
        stream, others = scaled.stream("cpu"), scaled.stream("gpu")
        assert not (await stream.read()).result
        assert not (await others.read()).result
        assert not await scaled.is_active("cpu")
        await scaled.record(m=2)
        assert (await stream.read()).result
        assert await scaled.is_active("cpu")
        assert await scaled.requests("cpu") == 2
        assert not await scaled.is_active("gpu"), "they wait for another pool"
        await scaled.record("h", other=1, m=1)
        assert (await others.read()).result
        assert await scaled.requests("cpu") == 3, "at both gateways"
        for gateway in ("g", "h"):
            await scaled.write(Delete(KEYS.waiting_at(gateway)))
        stream.cancel()
        others.cancel()

    run(scenario, tmp_path)


def test_a_stream_that_begins_while_requests_wait_says_so_first(tmp_path: Path) -> None:
    async def scenario(scaled: Scaled) -> None:
        await scaled.record(m=1)
        stream = scaled.stream("cpu")
        assert (await stream.read()).result
        stream.cancel()

    run(scenario, tmp_path)


def test_a_reading_that_takes_long_delays_nothing(tmp_path: Path) -> None:
    async def scenario(scaled: Scaled) -> None:
        reads = asyncio.Event()

        async def read(*arguments: object) -> PoolLoad:
            reads.set()
            await asyncio.Event().wait()
            raise AssertionError

        scaled.scaler._reader.read = read  # type: ignore[method-assign]
        stream = scaled.stream("cpu")
        await reads.wait()
        await scaled.record(m=1)
        assert (await stream.read()).result
        stream.cancel()

    run(scenario, tmp_path)


def test_the_page_and_the_record_are_of_the_same_requests(tmp_path: Path) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(PAGE), PAGE))
        await writer.drain()
        writer.close()

    async def scenario(scaled: Scaled) -> None:
        async with await asyncio.start_server(page, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await scaled.write(Put(KEYS.gateway("g"), encode(GatewayRecord("g", "127.0.0.1", 8000, metrics_port=port))))
            await scaled.record(m=2)
            assert await scaled.requests("cpu") == 3
            await scaled.record(m=5)
            assert await scaled.requests("cpu") == 5

    run(scenario, tmp_path)
