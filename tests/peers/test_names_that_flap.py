"""DNS that fails, hangs, flaps and lies, under a gateway with load and under a client of etcd: nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from name_server import NameServer
from prometheus_client.parser import text_string_to_metric_families

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.ports import free_ports
from gateway_process import GatewayProcess, start_gateway
from server_process import StartServer

pytestmark = pytest.mark.peers

ONE, TWO, NOBODY = "127.0.0.2", "127.0.0.3", "127.0.0.99"
_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[7]}]}'
_LIMIT = 60.0


def wait_for(holds: Callable[[], bool], seconds: float = _LIMIT) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"waited {seconds} s in vain"
        time.sleep(0.02)


class Load:
    """Callers in loops, some with requests of 0.3 s: every answer other than 200 is kept."""

    def __init__(self, gateway: GatewayProcess, models: tuple[str, ...] = ("identity", "identity", "slow")) -> None:
        self._port = gateway.http_port
        self._over = threading.Event()
        self._answered = [0] * len(models)
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=each) for each in enumerate(models)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_LIMIT)

    @property
    def count(self) -> int:
        return sum(self._answered)

    def more(self, count: int = 5) -> None:
        """Every caller gets so many further answers."""
        wanted = [each + count for each in self._answered]
        wait_for(lambda: bool(self.failures) or all(map(int.__ge__, self._answered, wanted)))
        assert not self.failures, self.failures[:5]

    def _run(self, place: int, model: str) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_LIMIT)
        while not self._over.is_set():
            try:
                connection.request("POST", f"/v2/models/{model}/infer", _BODY)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    self.failures.append(f"{model}: {answer.status} {text.decode()}")
            except OSError as error:
                self.failures.append(f"{model}: {type(error).__name__}: {error}")
                return
            self._answered[place] += 1
        connection.close()


class Names:
    """A name server, workers at two addresses behind one port, and a gateway that asks that server alone."""

    def __init__(self, server: NameServer, port: int, gateway: GatewayProcess) -> None:
        self.server, self.port, self.gateway = server, port, gateway

    def values(self, metric: str, label: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.gateway.metrics_port}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            sample.labels[label]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"isochrone_gateway_{metric}"
        }

    def healthy(self) -> dict[str, float]:
        """By address, without the port."""
        return {address.partition(":")[0]: value for address, value in self.values("worker_healthy", "worker").items()}

    def resolves(self) -> float | None:
        return self.values("name_resolves", "name").get("workers.test")

    def failures(self) -> float:
        return self.values("name_lookup_failures_total", "name")["workers.test"]

    def looks(self, count: int) -> None:
        """The gateway has asked so often again, and has used the answers."""
        wanted = self.server.asked + count + 1
        wait_for(lambda: self.server.asked >= wanted)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.gateway.log_events() if line.get("event", "").startswith(event)]

    def removed(self) -> set[str]:
        """Addresses of endpoints that have been removed."""
        return {address.partition(":")[0] for line in self.events("upstreams changed") for address in line["removed"]}


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def place(tmp_path: Path, repository: Path, server_factory: StartServer, port: int) -> Iterator[Names]:
    with ExitStack() as stack:
        server = stack.enter_context(NameServer(tmp_path, workers=[ONE, TWO]))
        for host in (ONE, TWO):
            stack.enter_context(start_worker(server_factory, repository, host, port))
        gateway = stack.enter_context(
            start_gateway(
                [], "--upstream-dns", f"workers.test:{port}", log_path=tmp_path / "gateway.log", prefix=server.prefix
            )
        )
        names = Names(server, port, gateway)
        wait_for(lambda: names.healthy() == {ONE: 1, TWO: 1})
        yield names


def start_worker(server_factory: StartServer, repository: Path, host: str, port: int) -> Any:
    return server_factory(repository, "--host", host, "--http-port", str(port))


def test_dns_fails_hangs_and_comes_back(place: Names) -> None:
    both = {ONE: 1.0, TWO: 1.0}
    with Load(place.gateway) as load:
        load.more()
        assert place.resolves() == 1
        for mode, error in (("servfail", "Temporary failure"), ("nxdomain", "not known"), ("silent", "no answer")):
            place.server.mode = mode
            wait_for(lambda: place.resolves() == 0)
            before = place.failures()
            # Several looks fail. Each is shared by those that wait for it.
            wait_for(lambda: place.failures() >= before + 3)  # noqa: B023
            load.more()
            assert place.healthy() == both
            lines = place.events("a name does not resolve; its last addresses stay")
            assert error in lines[-1]["error"], lines
            assert lines[-1]["name"] == "workers.test"
            assert sorted(lines[-1]["addresses"]) == [ONE, TWO]
            place.server.mode = "answer"
            wait_for(lambda: place.resolves() == 1)
            load.more()
        assert place.healthy() == both
        assert not place.removed()
    assert not load.failures
    # One for each error: failures of seconds are not a line each.
    assert len({line["error"] for line in lines}) == len(lines) <= 4, lines
    assert 1 <= len(place.events("a name resolves again")) <= len(lines)


def test_addresses_that_come_and_go(place: Names) -> None:
    with Load(place.gateway) as load:
        for found in ([ONE], [TWO], [ONE, TWO], [NOBODY], [TWO], [], [ONE], [NOBODY], [ONE, TWO]):
            place.server.addresses["workers"] = found
            place.looks(1)
            load.more(1)
        assert not place.removed() & {ONE, TWO}
        # A wrong answer for long: the workers that answer stay.
        place.server.addresses["workers"] = [NOBODY]
        place.looks(14)
        load.more()
        assert place.healthy() == {ONE: 1, TWO: 1, NOBODY: 0}
        # A right one: the worker that is gone leaves, after a while, and without losing a request.
        place.server.addresses["workers"] = [ONE]
        wait_for(lambda: set(place.healthy()) == {ONE})
        load.more()
        place.server.addresses["workers"] = [ONE, TWO]
        wait_for(lambda: place.healthy() == {ONE: 1, TWO: 1})
        load.more()
    assert not load.failures


@pytest.mark.parametrize("mode", ["servfail", "silent"])
def test_a_worker_by_name_restarts_while_dns_is_away(
    mode: str, tmp_path: Path, repository: Path, server_factory: StartServer, port: int
) -> None:
    """Its connections are gone, and new ones need an address."""
    with ExitStack() as stack:
        server = stack.enter_context(NameServer(tmp_path, one=[ONE]))
        log_path = tmp_path / "gateway.log"
        upstreams = [f"one.test:{port}"]
        with start_worker(server_factory, repository, ONE, port):
            gateway = stack.enter_context(start_gateway(upstreams, log_path=log_path, prefix=server.prefix))
            with Load(gateway) as load:
                load.more()
                server.mode = mode
            assert not load.failures
        with start_worker(server_factory, repository, ONE, port):
            wait_for(lambda: len(Names(server, port, gateway).events("a worker is ready")) == 2)
            with Load(gateway) as load:
                load.more()
            names = Names(server, port, gateway)
            wait_for(lambda: names.values("name_resolves", "name") == {"one.test": 0})
            server.mode = "answer"
            wait_for(lambda: names.values("name_resolves", "name") == {"one.test": 1})
        assert not load.failures


def test_a_gateway_stops_at_once_while_a_lookup_hangs(tmp_path: Path) -> None:
    with NameServer(tmp_path) as server:
        server.mode = "silent"
        with start_gateway(
            [], "--upstream-dns", "workers.test:8000", log_path=tmp_path / "log", prefix=server.prefix
        ) as gateway:
            wait_for(lambda: "and no address of it is known" in gateway.log_text())
            began = server.asked
            assert gateway.terminate() == 0
            # The system's resolver asks twice, five seconds apart: the process did not wait for it to give up.
            assert server.asked <= began + 2


_STORE_CLIENT = """
import asyncio, sys
from isochrone.observe import logs
from isochrone.store.base import Put, StoreUnavailable
from isochrone.store.opening import open_store
from isochrone.store.retrying import until_available

async def main(url):
    store = open_store(url)
    lease = await store.grant(10)
    after = (await store.list("/names/")).revision
    seen = []

    async def watch():
        nonlocal after
        while True:
            try:
                async for changes in store.watch("/names/", after):
                    after = changes.revision
                    seen.extend(entry.key for entry in changes.written)
            except StoreUnavailable:
                await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        # The first attempt may be on a connection that is gone.
        await until_available(lambda: store.transact([], [Put(f"/names/{line}", b"x", lease.id)]))
        # Several renewals.
        await asyncio.sleep(8)
        assert await asyncio.to_thread(lambda: 7) == 7
        found = await store.list("/names/")
        assert not watching.done(), watching
        print("lost" if lease.lost else "kept", len(found.entries), len(seen), flush=True)
    watching.cancel()
    await lease.revoke()
    await store.close()

logs.configure()
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("mode", ["servfail", "silent"])
def test_etcd_by_name_restarts_while_dns_is_away(mode: str, tmp_path: Path) -> None:
    """The lease lives, a write goes through, and a watch goes on, by new connections."""
    (member,) = loopback_members(1)
    host, _, etcd_port = member.client.partition(":")
    with ExitStack() as stack:
        cluster = stack.enter_context(EtcdCluster(tmp_path / "etcd", [member]))
        server = stack.enter_context(NameServer(tmp_path, etcd=[host]))
        client = stack.enter_context(
            subprocess.Popen(
                (*server.prefix, sys.executable, "-c", _STORE_CLIENT, f"etcd:http://etcd.test:{etcd_port}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(client.kill)
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        for number in range(1, 3):
            server.mode = mode
            cluster.kill(member.name)
            cluster.start(member.name)
            cluster.wait_ready(member.name)
            client.stdin.write(f"{number}\n")
            client.stdin.flush()
            assert client.stdout.readline().split() == ["kept", str(number), str(number)]
        client.stdin.close()
        assert client.wait(_LIMIT) == 0
