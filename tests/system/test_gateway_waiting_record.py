"""A gateway of a fleet without workers: the store names the models whose requests wait there, as long as they do."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from gateway_process import GatewayProcess, StartGateway
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord
from isochrone.control.state.view import View
from isochrone.store.base import Put
from isochrone.store.opening import open_store
from sample_models import write_models
from server_process import StartServer
from watching import wait_for

pytestmark = pytest.mark.long

KEYS = Keys("plant")
MODEL = "identity_int32"
SENT = np.arange(16, dtype=np.int32)
FLEET = f"""
name: plant
pools: {{cpu: {{workers: 1}}}}
models: {{{MODEL}: {{version: 1, traffic: {{waiting_room: {{max_requests: 8, max_wait_ms: 60000}}}}}}}}
"""


class FleetStore:
    """A store in which the model is committed."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:{directory / 'fleet.db'}"
        epoch = EpochRecord(1, {MODEL: Assignment("1", pools=("cpu",))})
        fleet = FleetRecord(1, FLEET, parse_fleet(FLEET, "fleet.yaml", directory).model_dump(mode="json"))

        async def write() -> None:
            store = open_store(self.url)
            await store.transact((), (Put(KEYS.fleet, encode(fleet)), Put(KEYS.epoch, encode(epoch))))
            await store.close()

        asyncio.run(write())

    def flags(self, name: str) -> tuple[str, ...]:
        return ("--store", self.url, "--fleet", KEYS.fleet_name, "--name", name, "--lease-seconds", "2")

    def waiting(self) -> dict[str, int]:
        async def read() -> dict[str, int]:
            store = open_store(self.url)
            try:
                return View(KEYS, (await store.list(KEYS.prefix)).entries).waiting_models
            finally:
                await store.close()

        return asyncio.run(read())


def ask(gateway: GatewayProcess) -> list[int]:
    with closing(StockClient("http", gateway)) as client:
        return list(client.infer(MODEL, {"IN": SENT}).as_numpy("OUT").tolist())


def test_the_record_stands_until_a_worker_has_answered(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    store = FleetStore(tmp_path)
    repository = write_models(tmp_path / "models", MODEL)
    with gateway_factory([], *store.flags("g")) as gateway, ThreadPoolExecutor(2) as pool:
        assert store.waiting() == {}
        asked = pool.submit(ask, gateway)
        wait_for(lambda: store.waiting() == {MODEL: 1}, 60)
        further = pool.submit(ask, gateway)
        wait_for(lambda: store.waiting() == {MODEL: 2}, 60)
        flags = ("--model-control-mode", "explicit", "--load-model", MODEL, "--pool", "cpu")
        with server_factory(repository, *flags, *store.flags("cpu-1")):
            assert asked.result(60) == further.result(60) == SENT.tolist()
            wait_for(lambda: store.waiting() == {}, 60)


def test_the_record_goes_with_its_gateway(gateway_factory: StartGateway, tmp_path: Path) -> None:
    store = FleetStore(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with gateway_factory([], *store.flags("g")) as stopped:
            asked = pool.submit(ask, stopped)
            wait_for(lambda: store.waiting() == {MODEL: 1}, 60)
            assert stopped.terminate() == 0
            assert store.waiting() == {}
            with pytest.raises(InferenceServerException, match="the gateway is stopping"):
                asked.result(60)
        with gateway_factory([], *store.flags("h"), check_exit=False) as killed:
            asked = pool.submit(ask, killed)
            wait_for(lambda: store.waiting() == {MODEL: 1}, 60)
            killed.kill()
            wait_for(lambda: store.waiting() == {}, 60)
            assert asked.exception(60) is not None
