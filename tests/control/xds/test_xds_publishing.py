"""What a server publishes while records come and go in a real store: leases, standby workers, commits before reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from xds_workers import IndexWorker, running, until

from isochrone.control.state.codec import decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import XdsServerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord
from isochrone.control.state.view import View
from isochrone.control.xds import messages, served_versions, server
from isochrone.control.xds.resources import EDS, ENVOY, RDS
from isochrone.control.xds.server import XdsServer
from isochrone.store.base import Delete, Put
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

KEYS = Keys("publishing")
READY, INDEX = "/v2/health/ready", "/v2/repository/index"
METHOD = f"/{messages.ADS}/StreamAggregatedResources"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no worker silent."""
    monkeypatch.setattr(served_versions, "_READ_SECONDS", 20.0)


class Published:
    """A server on a store, and one client that subscribes to the routes and to the endpoints of two versions."""

    def __init__(self, path: Path) -> None:
        self.store = open_store(f"sqlite:{path / 'fleet.db'}")
        self._mirror = Mirror(self.store, KEYS.prefix)
        self._server = XdsServer(self.store, KEYS, self._mirror, "c1")
        #: Version → the ports of each answer that the client was sent.
        self.ports: dict[str, list[set[int]]] = {"1": [], "2": []}
        #: The versions of requests that name none, by model, of each answer.
        self.routes: list[dict[str, str]] = []

    async def write(self, *operations: Put | Delete) -> None:
        await self.store.transact((), operations)

    async def commit(self, epoch: int, version: str, *others: str) -> None:
        """``others``: further models, which no worker serves."""
        solo = Assignment(version, f"d{version}", "1" if version != "1" else "", "d1")
        models = {"solo": solo, **dict.fromkeys(others, Assignment("1", "d"))}
        await self.write(Put(KEYS.epoch, encode(EpochRecord(epoch, models))))

    async def record(self) -> XdsServerRecord:
        while True:
            entry = await self.store.get(KEYS.xds_server("c1"))
            if entry is not None:
                return decode(entry.value, XdsServerRecord)
            await asyncio.sleep(0.01)

    async def committed(self) -> int:
        """The epoch that clients have to take over, once the server has seen what is in the store."""
        await self._mirror.catch_up((await self.store.list(KEYS.prefix)).revision)
        return self._server._committed()

    async def epoch_is(self, epoch: int) -> None:
        while True:
            if (await self.record()).epoch == epoch:
                return
            await asyncio.sleep(0.01)

    async def follow(self, port: int) -> None:
        kinds = {EDS: ["solo/1/http", "solo/2/http"], RDS: [ENVOY]}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(
                METHOD, messages.DiscoveryRequest.SerializeToString, messages.DiscoveryResponse.FromString
            )()
            for kind, names in kinds.items():
                await call.write(messages.DiscoveryRequest(type_url=kind, resource_names=names, node={"id": "hand"}))
            async for response in call:
                for resource in response.resources:
                    self._take(response.type_url, resource.value)
                names, nonce = kinds[response.type_url], response.nonce
                await call.write(
                    messages.DiscoveryRequest(type_url=response.type_url, resource_names=names, response_nonce=nonce)
                )

    def _take(self, kind: str, value: bytes) -> None:
        if kind == EDS:
            assignment = messages.ClusterLoadAssignment.FromString(value)
            found = [each for region in assignment.endpoints for each in region.lb_endpoints]
            ports = {each.endpoint.address.socket_address.port_value for each in found}
            self.ports[assignment.cluster_name.split("/")[1]].append(ports)
        else:
            (host,) = messages.RouteConfiguration.FromString(value).virtual_hosts
            plain = [each.route.cluster.split("/") for each in host.routes if each.route.prefix_rewrite]
            self.routes.append({model: version for model, version, _ in plain})

    def at(self, version: str, *workers: IndexWorker) -> Callable[[], bool]:
        """Whether these are its endpoints."""
        return lambda: bool(self.ports[version]) and self.ports[version][-1] == {each.port for each in workers}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        await self._mirror.start()
        parts = [asyncio.ensure_future(self._server.serve("127.0.0.1", 0))]
        try:
            parts.append(asyncio.ensure_future(self.follow((await self.record()).port)))
            yield
        finally:
            for part in reversed(parts):
                part.cancel()
                await asyncio.gather(part, return_exceptions=True)
            await self._mirror.stop()
            await self.store.close()


@asynccontextmanager
async def _published(path: Path, *workers: IndexWorker) -> AsyncIterator[Published]:
    """Workers ``w1``, ``w2``, … with version 1 committed."""
    async with running(*workers):
        published = Published(path)
        await published.commit(1, "1")
        for number, worker in enumerate(workers, 1):
            name = f"w{number}"
            await published.write(Put(KEYS.worker(name), encode(worker.record(name))))
        async with published.serving():
            await until(published.at("1", *workers))
            yield published


def _standby(name: str) -> Put:
    return Put(KEYS.standby(name), encode(EventRecord(0.0, "c1", "standby", name, "")))


def test_endpoints_stay_while_leases_expire_and_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        workers = IndexWorker(v1="d1"), IndexWorker(v1="d1")
        async with _published(tmp_path, *workers) as published:
            # As if the store had stood still for longer than their leases.
            lease = await published.store.grant(60.0)
            records = {name: encode(worker.record(name)) for name, worker in zip(("w1", "w2"), workers, strict=True)}
            await published.write(*(Put(KEYS.worker(name), value, lease.id) for name, value in records.items()))
            await lease.revoke()
            assert (await published.store.list(KEYS.workers)).entries == {}
            # The server has noticed: of workers without a record, it asks for more than the index.
            await until(lambda: all(worker.calls.get(READY, 0) >= 2 for worker in workers))
            await published.write(*(Put(KEYS.worker(name), value) for name, value in records.items()))
            # A change that is published after all that.
            workers[1].served = {}
            await until(published.at("1", workers[0]))
            assert published.ports["1"] == [{worker.port for worker in workers}, {workers[0].port}]

    asyncio.run(scenario())


def test_workers_whose_records_do_not_come_back_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ServedVersions", lambda changed: served_versions.ServedVersions(changed, 0.1))

    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _published(tmp_path, worker) as published:
            await published.write(Delete(KEYS.worker("w1")))
            await until(published.at("1"))

    asyncio.run(scenario())


def test_standby_workers_are_promoted_demoted_and_used_when_the_others_are_dead(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second = IndexWorker(v1="d1"), IndexWorker(v1="d1")
        async with _published(tmp_path, first, second) as published:
            await published.write(_standby("w2"))
            await until(published.at("1", first))
            # Both change places at once: never none, and never both.
            await published.write(_standby("w1"), Delete(KEYS.standby("w2")))
            await until(published.at("1", second))
            assert published.ports["1"][-2:] == [{first.port}, {second.port}]
            # Nobody has promoted it yet.
            await second.end()
            await until(published.at("1", first))
            await published.write(Delete(KEYS.standby("w1")), Delete(KEYS.worker("w2")))
            await second.start()
            await published.write(Put(KEYS.worker("w2"), encode(second.record("w2"))), _standby("w2"))
            read = second.calls[INDEX]
            await until(lambda: second.calls[INDEX] > read + 1)
            await published.write(Delete(KEYS.standby("w2")))
            await until(published.at("1", first, second))
            assert published.ports["1"][-2:] == [{first.port}, {first.port, second.port}]

    asyncio.run(scenario())


def test_a_commit_that_comes_before_the_indexes_keeps_the_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_DISCOVERY_SECONDS", 0.05)

    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _published(tmp_path, worker) as published:
            await until(lambda: published.routes == [{"solo": "1"}])
            # It is busy while version 2, which it has loaded, is committed.
            worker.moves.clear()
            worker.served["2"] = "d2"
            await published.commit(2, "2", "new")
            await until(lambda: len(published.routes) == 2)
            assert published.routes[1] == {"solo": "1", "new": "1"}
            assert (await published.record()).epoch == 1, "the leader is to keep version 1"
            worker.moves.set()
            await until(lambda: len(published.routes) == 3)
            assert published.routes[2] == {"solo": "2", "new": "1"}
            await until(lambda: published.ports["2"] == [{worker.port}])
            await published.epoch_is(2)

    asyncio.run(scenario())


def test_an_earlier_epoch_that_is_put_back_is_not_published(tmp_path: Path) -> None:
    """Its clients' epoch is what tells of it, and stays."""

    async def scenario() -> None:
        w1 = IndexWorker(v1="d1")
        async with _published(tmp_path, w1) as published:
            await published.commit(5, "1")
            await published.epoch_is(5)
            await published.commit(3, "1")
            assert await published.committed() == 5
            assert (await published.record()).epoch == 5
            view = View(KEYS, (await published.store.list(KEYS.prefix)).entries)
            assert view.is_unreadable(KEYS.epoch)
            await published.commit(6, "1")
            assert await published.committed() == 6
            await published.epoch_is(6)

    asyncio.run(scenario())


def test_a_version_that_nobody_serves_holds_the_epoch_for_a_while_and_the_route_until_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.5)

    async def scenario() -> None:
        worker = IndexWorker(v1="d1")
        async with _published(tmp_path, worker) as published:
            await until(lambda: published.routes == [{"solo": "1"}])
            await published.commit(2, "2")
            # Clients that have taken over all there is are with it.
            await published.epoch_is(2)
            assert published.routes == [{"solo": "1"}]
            worker.served = {"2": "d2"}
            await until(lambda: len(published.routes) == 2)
            assert published.routes[1] == {"solo": "2"}
            await until(lambda: published.ports["2"] == [{worker.port}])

    asyncio.run(scenario())
