"""A real gateway and a real worker: the observed load is what was sent, and the worker's capacity is measured."""

from __future__ import annotations

import asyncio
import sys
from math import isfinite
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as grpc

import isochrone
from fleet_records import KEYS, Records
from gateway_process import StartGateway
from isochrone.control.scaling.measured.pool_observation import PoolMembers, PoolObserver
from isochrone.control.scaling.measured.worker_distances import WorkerDistances
from isochrone.control.scaling.reading.fleet_counters import FleetReading, GatewayCounts, WorkerStatistics
from isochrone.control.scaling.reading.fleet_reading import FleetReader
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from sample_models import write_models
from server_process import ServerProcess, StartServer

MODEL = "identity_fp32"
REQUESTS = 25


def elapsed(first: GatewayCounts | WorkerStatistics | None, second: GatewayCounts | WorkerStatistics | None) -> float:
    """Between the arrivals of two pages."""
    assert first is not None
    assert second is not None
    return (second.instant or 0.0) - (first.instant or 0.0)


def records_of(worker: ServerProcess, gateway: ServerProcess) -> Records:
    records = Records(None)
    registered = WorkerRecord("a", "127.0.0.1", worker.http_port, worker.grpc_port, incarnation="1")
    records.put(KEYS.workers + "a", registered)
    front = GatewayRecord("x", "127.0.0.1", gateway.http_port, gateway.metrics_port, incarnation="1")
    records.put(KEYS.gateways + "x", front)
    return records


def test_the_load_of_a_real_pool_is_what_was_sent(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = write_models(tmp_path_factory.mktemp("observed") / "models", MODEL)
    with server_factory(repository) as worker, gateway_factory([worker]) as gateway:
        records = records_of(worker, gateway)

        async def run() -> tuple[FleetReading, FleetReading]:
            reader = FleetReader()
            first = await reader.read(records.view, ("",))
            async with isochrone.AsyncClient(gateway.http_url) as client:
                for _ in range(REQUESTS):
                    await client.infer(MODEL, {"IN": np.ones(4, np.float32)})
            second = await reader.read(records.view, ("",))
            await reader.close()
            return first, second

        first, second = asyncio.run(run())
    if sys.platform == "linux":
        distances = WorkerDistances().take(second, second.instant)
        assert distances.keys() == {"a"}, "the gateway measures the way to each worker"
        assert 0 < distances["a"] < 10
    observer, members = PoolObserver(0.2), PoolMembers(frozenset((MODEL,)), ("a",), pending=1)
    assert observer.observe(first, members, first.instant, None).offered is None
    seen = observer.observe(second, members, second.instant, None)
    assert seen.offered is not None
    seconds = [elapsed(first.gateways["x"], second.gateways["x"]), elapsed(first.workers["a"], second.workers["a"])]
    assert seen.offered == pytest.approx(REQUESTS / min(seconds)), "both count the same requests"
    assert not seen.is_busy
    assert seen.refused == 0
    assert seen.ready == seen.pending
    assert seen.ready[0] > 0
    assert isfinite(seen.ready[0])


def test_requests_of_a_stream_and_of_an_ensemble_are_counted_once(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = write_models(tmp_path_factory.mktemp("observed") / "models", "pipeline")
    with server_factory(repository) as worker, gateway_factory([worker]) as gateway:
        records = records_of(worker, gateway)

        async def run() -> tuple[FleetReading, FleetReading]:
            reader = FleetReader()
            stream(gateway.grpc_port)
            first = await reader.read(records.view, ("",))
            await asyncio.to_thread(stream, gateway.grpc_port)
            second = await reader.read(records.view, ("",))
            await reader.close()
            return first, second

        first, second = asyncio.run(run())
    models = frozenset(("pipeline", "add_sub", "double"))
    observer, members = PoolObserver(0.2), PoolMembers(models, ("a",))
    observer.observe(first, members, first.instant, None)
    seen = observer.observe(second, members, second.instant, None)
    assert seen.offered is not None
    assert seen.offered == pytest.approx(REQUESTS / elapsed(first.workers["a"], second.workers["a"]))
    assert seen.ready[0] > 0


def stream(port: int) -> None:
    """Send requests for the ensemble within one stream."""
    answers: Queue[Exception | None] = Queue()
    inputs = [grpc.InferInput(name, [1, 16], "FP32") for name in "AB"]
    for each in inputs:
        each.set_data_from_numpy(np.ones((1, 16), np.float32))
    with grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.start_stream(lambda result, error: answers.put(error))
        for _ in range(REQUESTS):
            client.async_stream_infer("pipeline", inputs)
        for _ in range(REQUESTS):
            assert answers.get(timeout=20) is None
        client.stop_stream()
