"""xDS over real gRPC: clients that reject, ask for nonsense, vanish or never answer leave the server as it was."""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from real_fleets import until

from isochrone.control.state.codec import decode, encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord, XdsServerRecord
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.xds import messages
from isochrone.control.xds.clients import MOST_PER_HOST
from isochrone.control.xds.resources import CDS, EDS, ENVOY, LDS, RDS
from isochrone.store.base import Put
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store
from logged_ports import wait_ports

KEYS = Keys("hostile")
METHOD = f"/{messages.ADS}/StreamAggregatedResources"


class _Index(BaseHTTPRequestHandler):
    """A worker, as far as its index goes."""

    #: Version → digest.
    served: ClassVar[dict[str, str]] = {"1": "d1"}
    reads: ClassVar[int] = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        _Index.reads += 1
        rows = [
            {"name": "solo", "version": version, "state": "READY", "digest": digest}
            for version, digest in self.served.items()
        ]
        body = json.dumps(rows).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server:
    """A controller that serves xDS for one model on one worker."""

    def __init__(self, directory: Path, worker_port: int) -> None:
        self.store = f"sqlite:{directory / 'fleet.db'}"
        self.write(
            Put(KEYS.worker("w1"), encode(WorkerRecord("w1", "127.0.0.1", worker_port, worker_port, pool="cpu"))),
            Put(KEYS.epoch, encode(EpochRecord(1, {"solo": Assignment("1", "d1", pools=("cpu",))}))),
        )
        command = [
            *(sys.executable, "-m", "isochrone", "control", "--store", self.store, "--fleet", "hostile"),
            *("--listen", "127.0.0.1:0", "--xds-listen", "127.0.0.1:0", "--log-json"),
        ]
        self.log = directory / "control.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ports = wait_ports(self.log, "xds", "control", lives=lambda: self.process.poll() is None)
        self.api = f"http://127.0.0.1:{ports['control']}"
        self.address = f"127.0.0.1:{ports['xds']}"
        self.channel = grpc.insecure_channel(self.address)

    def write(self, *operations: Put) -> None:
        async def transact() -> None:
            store = open_store(self.store)
            try:
                await store.transact((), operations)
            finally:
                await store.close()

        asyncio.run(transact())

    def record(self) -> XdsServerRecord | None:
        async def get() -> Any:
            store = open_store(self.store)
            try:
                return await store.get(KEYS.xds_server("c1"))
            finally:
                await store.close()

        entry = asyncio.run(get())
        return decode(entry.value, XdsServerRecord) if entry is not None else None

    def events(self, what: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.api}/v1/events", timeout=30) as answer:
            return [each for each in json.load(answer)["events"] if each["what"] == what]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as worker:
        threading.Thread(target=worker.serve_forever, daemon=True).start()
        started = Server(tmp_path_factory.mktemp("xds"), worker.server_address[1])
        try:
            # Nothing is routed before the worker's index has been read.
            until(lambda: _endpoints(started) == 1, "the worker to be an endpoint")
            yield started
        finally:
            started.channel.close()
            started.process.terminate()
            ended = started.process.wait(30)
            worker.shutdown()
        assert ended == 0
        assert "Traceback" not in started.log.read_text()


class Stream:
    """One client's stream, by hand."""

    def __init__(self, server: Server, node: str = "hand", **metadata: str) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        call = server.channel.stream_stream(
            METHOD, messages.DiscoveryRequest.SerializeToString, messages.DiscoveryResponse.FromString
        )
        self.call = call(iter(self._requests.get, None), timeout=60)
        self._node: dict[str, Any] = {"id": node, "metadata": metadata}

    def send(self, kind: str, *names: str, nonce: str = "", error: str = "", version: str = "") -> None:
        request = messages.DiscoveryRequest(
            type_url=kind, resource_names=names, response_nonce=nonce, node=self._node, version_info=version
        )
        if error:
            request.error_detail.code, request.error_detail.message = 3, error
        self._requests.put(request)

    def next(self) -> Any:
        return next(self.call)

    def ask(self, kind: str, *names: str) -> Any:
        self.send(kind, *names)
        return self.next()

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()


def _endpoints(server: Server) -> int:
    with closing(Stream(server)) as stream:
        (resource,) = stream.ask(EDS, "solo/1/http").resources
        regions = messages.ClusterLoadAssignment.FromString(resource.value).endpoints
        return sum(len(region.lb_endpoints) for region in regions)


def _status(stream: Stream) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    return caught.value.code(), caught.value.details()


def test_a_rejection_is_one_event_and_no_loop(server: Server) -> None:
    with closing(Stream(server, "picky")) as stream:
        clusters = stream.ask(CDS)
        assert {each.type_url for each in clusters.resources} == {CDS}
        assert len(clusters.resources) == 2
        for _ in range(20):
            stream.send(CDS, nonce=clusters.nonce, error="this cluster\nis not to my taste")
        # The stream works on, and nothing was sent in between.
        assert stream.ask(LDS, "nobody").type_url == LDS
        found = until(lambda: server.events("xDS client rejected"), "the event")
    (event,) = [each for each in found if each["about"] == "picky"]
    assert event["detail"].startswith("Cluster 1.")
    assert "not to my taste" in event["detail"]


def test_an_envoy_gets_the_listener_that_it_asks_for(server: Server) -> None:
    with closing(Stream(server, isochrone_listen="127.0.0.1:8085")) as stream:
        (listener,) = stream.ask(LDS).resources
        read = messages.Listener.FromString(listener.value)
        assert (read.name, read.address.socket_address.port_value) == (ENVOY, 8085)
    with closing(Stream(server)) as stream:
        assert list(stream.ask(LDS).resources) == []


@pytest.mark.parametrize("listen", ["", "8085", "localhost:8085", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:x"])
def test_a_listener_nowhere_is_refused(server: Server, listen: str) -> None:
    with closing(Stream(server, f"lost {listen}", isochrone_listen=listen)) as stream:
        stream.send(LDS)
        assert _status(stream) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            f"node.metadata.isochrone_listen: expected IP:PORT, given '{listen}'",
        )


def test_too_many_names_are_refused_and_many_are_not(server: Server) -> None:
    names = [f"absent/{number}" for number in range(10_000)]
    with closing(Stream(server)) as stream:
        assert list(stream.ask(CDS, *names).resources) == []
    with closing(Stream(server)) as stream:
        stream.send(CDS, *names, "one more")
        code, details = _status(stream)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == "resource_names: expected at most 10000 names that do not exist, given 10001"


def test_unknown_types_and_names_are_left_unanswered(server: Server) -> None:
    with closing(Stream(server)) as stream:
        stream.send("type.googleapis.com/envoy.service.runtime.v3.Runtime", "x")
        stream.send("", "x")
        stream.send(RDS, "nobody")
        stream.send(EDS, "nobody")
        assert stream.ask(LDS, "nobody").type_url == LDS, "the first answer"


def test_bytes_that_are_no_message_end_the_stream_alone(server: Server) -> None:
    call = server.channel.stream_stream(METHOD)(iter([b"\xff\xff\xff nonsense"]), timeout=30)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "expected a DiscoveryRequest, given 12 bytes that are none"
    assert _endpoints(server) == 1
    delta = server.channel.stream_stream(METHOD.replace("Stream", "Delta"))(iter([b""]), timeout=30)
    with pytest.raises(grpc.RpcError) as caught:
        next(delta)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@contextmanager
def _many(server: Server, count: int) -> Iterator[list[Stream]]:
    streams = [Stream(server, f"many-{number}") for number in range(count)]
    try:
        yield streams
    finally:
        for stream in streams:
            stream.close()


def test_clients_that_vanish_leave_nothing(server: Server) -> None:
    with _many(server, 40) as streams:
        for number, stream in enumerate(streams):
            stream.send(CDS)
            if number % 2:
                stream.next()  # and no acknowledgement

        def counted(clients: int, epoch: int | None = None) -> bool:
            record = server.record()
            return record is not None and record.clients == clients and epoch in (None, record.epoch)

        until(lambda: counted(40, 0), "all to be counted, and none to have taken the epoch over")
    until(lambda: counted(0, 1), "none to be left")
    assert _endpoints(server) == 1


def test_clients_that_come_and_go_write_to_the_store_at_its_pace(server: Server) -> None:
    def flap() -> None:
        for number in range(60):
            with closing(Stream(server, f"flapping-{number}")) as stream:
                stream.ask(CDS)

    async def count() -> tuple[int, float]:
        store = open_store(server.store)
        mirror = Mirror(store, KEYS.xds_servers)
        changes: list[float] = []
        try:
            await mirror.start()
            mirror.on_change.append(lambda: changes.append(time.monotonic()))
            began = time.monotonic()
            await asyncio.to_thread(flap)
            return len(changes), time.monotonic() - began
        finally:
            await mirror.stop()
            await store.close()

    changes, seconds = asyncio.run(count())
    assert changes <= seconds + 2, "at most one a second"


def test_a_stream_that_asks_for_nothing_is_no_client_and_ends(server: Server) -> None:
    with closing(Stream(server)) as stream:
        stream.send("type.googleapis.com/envoy.service.runtime.v3.Runtime", "x")
        assert _status(stream) == (grpc.StatusCode.DEADLINE_EXCEEDED, "expected a subscription within 5 s")
    record = server.record()
    assert record is not None
    assert (record.clients, record.epoch) == (0, 1)


def test_one_host_does_not_take_all_streams(server: Server) -> None:
    subscription = messages.DiscoveryRequest(type_url=EDS, resource_names=["solo/1/http"]).SerializeToString()

    async def requests() -> AsyncIterator[bytes]:
        # A stream that asks for nothing is ended, on a busy machine before the last one is open.
        yield subscription
        await asyncio.Event().wait()

    async def open_all() -> tuple[Any, str]:
        async with grpc.aio.insecure_channel(server.address) as channel:
            method = channel.stream_stream(METHOD)
            calls = [method(requests()) for _ in range(MOST_PER_HOST + 1)]
            codes = [asyncio.ensure_future(call.code()) for call in calls]
            done, _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
            refused = calls[codes.index(done.pop())]
            found = await refused.code(), await refused.details()
            for call in calls:
                call.cancel()
            await asyncio.gather(*codes)
            return found

    code, details = asyncio.run(open_all())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details.startswith(f"expected at most {MOST_PER_HOST} streams of one host")
    # Once the others are gone, there is room again.
    until(lambda: _endpoints_or_none(server) == 1, "the streams to be given back")


def _endpoints_or_none(server: Server) -> int | None:
    try:
        return _endpoints(server)
    except grpc.RpcError:
        return None


def test_a_client_that_returns_has_its_routes_first(server: Server) -> None:
    """As Envoy does: all its subscriptions at once, with what it has of each."""
    with closing(Stream(server)) as stream:
        stream.send(CDS, version="1.1")
        stream.send(EDS, "solo/1/http", "solo/1/grpc", "solo/gone/http", version="1.1")
        stream.send(RDS, ENVOY, version="1.1")
        first, second = stream.next(), stream.next()
        assert [first.type_url, second.type_url] == [EDS, RDS]
        stream.send(RDS, ENVOY, nonce=second.nonce)
        assert stream.next().type_url == CDS


def test_routes_wait_for_a_worker_that_has_the_new_version(server: Server) -> None:
    """The last test here: it changes the epoch."""
    with closing(Stream(server, "waiting")) as stream:
        routes = stream.ask(RDS, ENVOY)
        stream.send(RDS, ENVOY, nonce=routes.nonce)
        server.write(
            Put(KEYS.epoch, encode(EpochRecord(2, {"solo": Assignment("2", "d2", "1", "d1", pools=("cpu",))})))
        )
        read = _Index.reads + 10
        until(lambda: _Index.reads > read, "the worker to be asked")
        with closing(Stream(server)) as other:
            (resource,) = other.ask(RDS, ENVOY).resources
            assert b"solo/1/http" in resource.value
            assert b"solo/2/http" not in resource.value
        _Index.served = {"1": "d1", "2": "d2"}
        changed = stream.next()
        (resource,) = changed.resources
        assert b"solo/2/http" in resource.value
        with closing(Stream(server)) as other:
            (endpoints,) = other.ask(EDS, "solo/2/http").resources
            assert len(messages.ClusterLoadAssignment.FromString(endpoints.value).endpoints) == 1
        stream.send(RDS, ENVOY, nonce=changed.nonce)
        until(lambda: (record := server.record()) is not None and record.epoch == 2, "the client to be with it")
