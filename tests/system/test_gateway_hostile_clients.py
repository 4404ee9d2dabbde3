"""Callers that are slow, rude or many: bounded memory, clear errors, and nothing else disturbed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio
from stock_clients import StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import Fleet, StartGateway
from hostile_client import HOST, ask, connected, message, parse_answers, read_to_end, talk
from hostile_upstreams import Connection, http_upstream
from sample_models import HELD
from watching import load_now, release_until, total, wait_for

MIB = 1 << 20
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[7]}]}'
INFER = "/v2/models/identity_int32/infer"


def resident(pid: int) -> int:
    """Bytes, as /proc/PID/status tells them."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.fixture(autouse=True)
def _others_are_not_disturbed(fleet: Fleet) -> Iterator[None]:
    """After each of these: the same process answers well, and nothing is left in flight on the workers."""
    yield
    answer = ask(fleet.gateway.http_port, "POST", INFER, BODY)
    assert json.loads(answer.body)["outputs"][0]["data"] == [7]
    wait_for(lambda: all(load_now(worker)["in_flight"] == 0 for worker in fleet.workers))


class TestLarge:
    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice to tritonclient
    @pytest.mark.parametrize("kind", ["http", "grpc"])
    def test_64_mb_both_ways(self, fleet: Fleet, kind: str) -> None:
        values = np.random.default_rng(1).integers(0, 255, 64 * MIB, np.uint8)
        with closing(StockClient(kind, fleet.gateway)) as client:
            before = resident(fleet.gateway.pid)
            for _ in range(3):
                assert np.array_equal(client.infer("identity_uint8", {"IN": values}).as_numpy("OUT"), values)
            # The request whole, the answer whole or in part, and what the sockets take: not once more per request.
            wait_for(lambda: resident(fleet.gateway.pid) - before < 4 * 64 * MIB)

    def test_a_body_beyond_the_limit(self, fleet: Fleet) -> None:
        with connected(fleet.gateway.http_port) as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" % INFER.encode())
            (answer,) = parse_answers(read_to_end(connection))
        assert answer.status == 413
        assert "max_body_bytes" in answer.error


class TestSlowReaders:
    def test_of_large_answers(self, fleet: Fleet) -> None:
        """Ten callers ask for 16 MiB each and read nothing for a while."""
        header = b'{"inputs":[{"name":"IN","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],'
        header %= (16 * MIB, 16 * MIB)
        header += b'"outputs":[{"name":"OUT","parameters":{"binary_data":true}}]}'
        lengths = {"Inference-Header-Content-Length": str(len(header))}
        request = message("POST", "/v2/models/identity_uint8/infer", header + bytes(16 * MIB), lengths)
        before = resident(fleet.gateway.pid)
        with ExitStack() as opened:
            connections = [opened.enter_context(connected(fleet.gateway.http_port, timeout=60)) for _ in range(10)]
            for connection in connections:
                connection.sendall(request)
            # Others go on meanwhile.
            for _ in range(20):
                assert ask(fleet.gateway.http_port, "POST", INFER, BODY).status == 200
            assert resident(fleet.gateway.pid) - before < 10 * 3 * 16 * MIB
            for connection in connections:
                head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert len(body) >= 16 * MIB
        # What the heap has kept is returned some seconds later (isochrone.heap).
        wait_for(lambda: resident(fleet.gateway.pid) - before < 200 * MIB)

    def test_of_a_stream_without_end(self, fleet: Fleet) -> None:
        """500 MiB are on offer; who does not read gets what the windows hold, and the worker waits."""

        def requests() -> Iterator[Any]:
            request = service_pb2.ModelInferRequest(model_name="burst")
            request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
            request.raw_input_contents.append(np.array([500], np.int32).tobytes())
            yield request

        before = resident(fleet.gateway.pid)
        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), timeout=60)
            next(call)
            for _ in range(50):
                assert ask(fleet.gateway.http_port, "POST", INFER, BODY).status == 200
            assert resident(fleet.gateway.pid) - before < 100 * MIB
            call.cancel()


class TestGone:
    def test_in_the_middle_of_a_request(self, fleet: Fleet) -> None:
        for count in (1, 40, 200):
            with connected(fleet.gateway.http_port) as connection:
                connection.sendall(message("POST", INFER, BODY * 10)[:count])
        with connected(fleet.gateway.http_port) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0")

    def test_while_the_worker_works(self, fleet: Fleet, sample_repository: Path) -> None:
        """Three wait in one worker's queue or run; their callers leave, and the workers learn of it."""
        body = b'{"inputs":[{"name":"MILLISECONDS","datatype":"INT32","shape":[1,1],"data":[%d]}]}' % HELD
        with closing(StockClient("http", fleet.gateway)) as watcher:
            before = watcher.count("slow")["executions"]
            connections = [socket.create_connection((HOST, fleet.gateway.http_port)) for _ in range(6)]
            for connection in connections:
                connection.sendall(message("POST", "/v2/models/slow/infer", body))
            wait_for(lambda: sum(load_now(worker)["in_flight"] for worker in fleet.workers) == 6)
            for connection in connections:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            wait_for(lambda: total(fleet.gateway, "isochrone_gateway_in_flight") == 0)
            for worker in fleet.workers:
                load_now(worker)  # behind the ends of the gateway's connections
            release_until(
                lambda: sum(load_now(worker)["in_flight"] for worker in fleet.workers) == 0, sample_repository
            )
            # At most the two that ran already, one on each worker.
            assert watcher.count("slow")["executions"] <= before + 2


async def _unary(url: str, number: int) -> bool:
    reader, writer = await asyncio.open_connection(*url.split(":"))
    try:
        for _ in range(3):
            writer.write(
                message("POST", INFER, BODY.replace(b"7", b"%d" % number)).replace(b"Connection: close\r\n", b"")
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            if json.loads(await reader.readexactly(length))["outputs"][0]["data"] != [number]:
                return False
        return True
    finally:
        writer.close()


async def _stream(url: str, number: int) -> bool:
    async with tritonclient.grpc.aio.InferenceServerClient(
        url, channel_args=[("grpc.use_local_subchannel_pool", 1)]
    ) as client:
        tensor = tritonclient.grpc.InferInput("IN", [5], "INT32")
        tensor.set_data_from_numpy(np.arange(number, number + 5, dtype=np.int32))

        async def inputs() -> Any:
            yield {"model_name": "repeat", "inputs": [tensor]}

        seen = [int(result.as_numpy("OUT")[0]) async for result, _ in client.stream_infer(inputs())]
        return seen == list(range(number, number + 5))


def test_a_thousand_connections(fleet: Fleet) -> None:
    """900 of them with three requests each, 100 with a stream, all at once; each gets its own answers."""

    async def run() -> list[bool]:
        calls = [_unary(fleet.gateway.http_url, number) for number in range(900)]
        calls += [_stream(fleet.gateway.grpc_url, number) for number in range(100)]
        return await asyncio.gather(*calls)

    before = resident(fleet.gateway.pid)
    assert all(asyncio.run(run()))
    wait_for(lambda: resident(fleet.gateway.pid) - before < 100 * MIB)


class TestMalformed:
    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\x0a",
            b"\x0a\xff",
            b"\x0a\x05ab",
            b"\x0a" + b"\xff" * 11,
            b"\x22\x03\x0a\x7fx",
            b"\x22\x02\x12\x00",
            b"\x0a\x04\xff\xfe\xfd\xfc",
            b"\x12\x01\xff",
            os.urandom(64),
        ],
        ids=range(10),
    )
    @pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
    def test_first_fields(self, fleet: Fleet, payload: bytes, method: str) -> None:
        path = f"/inference.GRPCInferenceService/{method}"
        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel:
            if method == "ModelInfer":
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(path)(payload, timeout=60)
                told = caught.value
            else:
                try:
                    answers = list(channel.stream_stream(path)(iter([payload]), timeout=60))
                    assert b"unknown model" in answers[0] or b"pars" in answers[0], answers
                    return
                except grpc.RpcError as error:
                    told = error
            expected = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
            assert told.code() in expected, told

    @pytest.mark.parametrize(
        ("target", "status"),
        [
            ("/v2/models/identity_int32%2Finfer", 405),
            ("/v2/models/..%2F..%2Fetc%2Fpasswd/infer", 404),
            ("/v2/models/../../v2/health/live", 404),
            ("//v2/models/identity_int32/infer", 404),
            ("/v2/models/identity_int32/versions/1%0d%0aX-Evil:%201/infer", 400),
            ("/v2/models/%00/infer", 404),
            ("/v2/models/%ff%fe/infer", 400),
            ("/v2/models/identity_int32/infer?x=%0d%0aevil:1", 200),
            ("/v2/models//infer", 404),
            ("/v2/models/identity_int32/infer/", 200),
            ("/v2/models/identity_int32/infer/../../../health/live", 404),
            ("/v1/models", 405),
        ],
    )
    def test_paths(self, fleet: Fleet, target: str, status: int) -> None:
        answer = ask(fleet.gateway.http_port, "POST", target, BODY)
        assert answer.status == status, answer
        assert "x-evil" not in answer.headers

    @pytest.mark.parametrize(
        "head",
        [
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 7",
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
            b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity",
            b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked",
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: +5",
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX: a\nX-Evil: b",
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length : 5",
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n X-Folded: b",
            b"POST %s HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 5",
            b"POST %s HTTP/9.9\r\nHost: x\r\nContent-Length: 5",
        ],
        ids=range(10),
    )
    def test_heads_that_could_mean_two_things(self, fleet: Fleet, head: bytes) -> None:
        """Refused here, so that no worker ever reads them another way; the connection ends with it."""
        smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = parse_answers(talk(fleet.gateway.http_port, head % INFER.encode() + b"\r\n\r\nhello" + smuggled))
        assert [answer.status // 100 for answer in answers] == [4]

    def test_an_absolute_target(self, fleet: Fleet) -> None:
        """RFC 9112 §3.2.2: a server must take it; whatever it names, the request goes to this gateway's workers."""
        answer = ask(fleet.gateway.http_port, "POST", "http://192.0.2.1:9" + INFER, BODY)
        assert answer.status in (200, 400, 404)

    def test_headers_of_a_connection_are_not_passed_on(self, gateway_factory: StartGateway) -> None:
        heads: list[bytes] = []

        def note(connection: Connection) -> None:
            heads.append(connection.head)
            connection.answer(200, b'{"model_name": "echo", "given": "%s"}' % connection.body)

        with http_upstream(note) as port, gateway_factory([f"127.0.0.1:{port}"]) as gateway:
            gateway.wait_workers(1)
            for framing, body in (
                ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
                ("Content-Length: 5", b"hello"),
            ):
                lines = [
                    *("POST /v2/models/echo/infer HTTP/1.1", "Host: x", "Connection: close, X-Secret", framing),
                    *("X-Secret: 1", "Keep-Alive: 9", "TE: trailers", "Upgrade: h2c", "Expect: 100-continue"),
                    *("Proxy-Connection: keep-alive", "Trailer: X", "X-Request-Id: 42"),
                ]
                (answer,) = parse_answers(talk(gateway.http_port, "\r\n".join(lines).encode() + b"\r\n\r\n" + body))
                assert (answer.status, json.loads(answer.body)["given"]) == (200, "hello")
        for head in heads:
            names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
            assert b"x-request-id" in names
            assert names.count(b"content-length") == 1
            assert not {b"x-secret", b"keep-alive", b"te", b"upgrade", b"expect", b"transfer-encoding"} & set(names)
