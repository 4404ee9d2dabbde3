"""Connections of the HTTP client against servers that do as they are told: byte by byte, late, or not at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import isochrone
from bench.ports import free_ports
from isochrone.errors import ConnectionLost, DeadlineExceeded, Internal, QueueFull, Unavailable

Serve = Callable[[socket.socket], None]

HEAD = json.dumps(
    {
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}],
    }
).encode()
BODY = HEAD + np.float32([7]).tobytes()
LENGTH = b"inference-header-content-length: %d\r\n" % len(HEAD)
ANSWER = b"HTTP/1.1 200 OK\r\n" + LENGTH + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
BUSY = b"HTTP/1.1 429 Too Many\r\nx-isochrone-unprocessed: 1\r\ncontent-length: 17\r\n\r\n" + b'{"error": "full"}'
X = {"x": np.float32([1])}


def read_request(connection: socket.socket) -> bytes:
    """One whole request; b"" at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(next((line[15:] for line in head.split(b"\r\n") if line.startswith(b"content-length:")), b"0"))
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def server(*connections: Serve, port: int = 0) -> Iterator[str]:
    """A server that treats its first connection as the first function says, and so on."""
    failed: list[BaseException] = []
    with socket.create_server(("127.0.0.1", port)) as listening:

        def run() -> None:
            try:
                for serve in connections:
                    connection, _ = listening.accept()
                    with connection:
                        serve(connection)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(60)
    assert not thread.is_alive()
    assert failed == []


def answering(*answers: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        for answer in answers:
            assert read_request(connection)
            connection.sendall(answer)
        assert connection.recv(1) == b""

    return serve


def test_one_connection_serves_many_requests(open_client: Any) -> None:
    with server(answering(ANSWER, ANSWER, ANSWER)) as url:
        client = open_client(url)
        assert [client.infer("m", X)["y"].tolist() for _ in range(3)] == [[7], [7], [7]]
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
        + LENGTH
        + b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    ],
    ids=["interim", "chunked"],
)
def test_other_forms_of_an_answer(open_client: Any, answer: bytes) -> None:
    def slowly(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            read_request(connection)
            for start in range(0, len(answer), 7):
                connection.sendall(answer[start : start + 7])
        assert connection.recv(1) == b""

    with server(slowly) as url:
        client = open_client(url)
        assert client.infer("m", X)["y"].tolist() == [7]
        assert client.infer("m", X)["y"].tolist() == [7]
        client.close()


def test_an_answer_that_ends_with_its_connection(open_client: Any) -> None:
    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + LENGTH + b"connection: close\r\n\r\n" + BODY)

    with server(once, once) as url:
        client = open_client(url)
        assert client.infer("m", X)["y"].tolist() == [7]
        assert client.infer("m", X)["y"].tolist() == [7]


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(open_client: Any) -> None:
    closed = threading.Event()

    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(ANSWER)
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    with server(once, answering(ANSWER)) as url:
        client = open_client(url, retries=0)
        assert client.infer("m", X)["y"].tolist() == [7]
        assert closed.wait(60)
        assert client.infer("m", X)["y"].tolist() == [7]
        client.close()


def test_a_rejection_of_which_nothing_has_run_is_sent_again(open_client: Any) -> None:
    with server(answering(BUSY, BUSY, ANSWER)) as url:
        client = open_client(url)
        assert client.infer("m", X, deadline_ms=60_000)["y"].tolist() == [7]
        client.close()
    with server(answering(BUSY)) as url:
        client = open_client(url, retries=0)
        with pytest.raises(QueueFull, match="full"):
            client.infer("m", X)
        client.close()


def test_a_rejection_without_the_mark_is_final(open_client: Any) -> None:
    with server(answering(BUSY.replace(b"unprocessed", b"elsewhere__"))) as url:
        client = open_client(url)
        with pytest.raises(QueueFull, match="full"):
            client.infer("m", X)
        client.close()


def test_a_server_that_starts_late_is_reached_by_a_retry(open_client: Any) -> None:
    (port,) = free_ports(1)
    client = open_client(f"127.0.0.1:{port}", retries=0)
    with pytest.raises(Unavailable, match="cannot connect to") as caught:
        client.infer("m", X)
    assert caught.value.unprocessed
    started = threading.Event()

    def late() -> None:
        with server(answering(ANSWER), port=port):
            started.set()

    patient = open_client(f"127.0.0.1:{port}", retries=10)
    thread = threading.Timer(0.05, late)
    thread.start()
    assert patient.infer("m", X)["y"].tolist() == [7]
    patient.close()
    thread.join()


def test_a_grpc_server_that_starts_late_is_reached_by_a_retry(open_client: Any) -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unavailable, match="cannot connect to grpc://") as caught:
        open_client(f"grpc://127.0.0.1:{port}", retries=0).infer("same", X)
    assert caught.value.unprocessed
    servers: list[isochrone.Server] = []

    def late() -> None:
        ports: Any = {"http_port": 0, "grpc_port": port, "metrics_port": 0}
        servers.append(isochrone.serve(lambda x: {"y": x}, name="same", inputs={"x": "FP32[1]"}, block=False, **ports))

    client = open_client(f"grpc://127.0.0.1:{port}", retries=100)
    thread = threading.Timer(0.05, late)
    thread.start()
    try:
        assert client.infer("same", X)["y"].tolist() == [1]
    finally:
        thread.join()
        servers[0].stop()


def test_a_request_that_was_sent_is_never_repeated(open_client: Any) -> None:
    seen: list[bytes] = []

    def vanish(connection: socket.socket) -> None:
        seen.append(read_request(connection))

    with server(vanish) as url:
        client = open_client(url, retries=5)
        with pytest.raises(ConnectionLost, match="before an answer"):
            client.infer("m", X)
    assert len(seen) == 1


def test_an_answer_that_breaks_off(open_client: Any) -> None:
    def half(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(ANSWER[:-3])

    with server(half) as url, pytest.raises(ConnectionLost, match="within an answer"):
        open_client(url).infer("m", X)


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", ANSWER.replace(b"FP32", b"FP99"), ANSWER.replace(b'"y"', b'"\xff"')]
)
def test_an_answer_that_cannot_be_read(open_client: Any, answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)
        connection.recv(1)

    with server(serve) as url:
        client = open_client(url)
        with pytest.raises((Internal, ConnectionLost), match=r"malformed|cannot be read"):
            client.infer("m", X)
        client.close()


def test_the_deadline_is_kept_without_the_servers_help(open_client: Any) -> None:
    headers: list[bytes] = []

    def silent(connection: socket.socket) -> None:
        headers.append(read_request(connection))
        assert connection.recv(1) == b""  # the client gives up, and says so

    with server(silent) as url:
        client = open_client(url)
        with pytest.raises(DeadlineExceeded, match=f"^no answer from http://{url} within the deadline$"):
            client.infer("m", X, deadline_ms=60)
    head, _, body = headers[0].partition(b"\r\n\r\n")
    sent = next(line for line in head.split(b"\r\n") if line.startswith(b"x-request-timeout-ms:"))
    assert 0 < float(sent.partition(b":")[2]) <= 60
    assert b'"timeout":60000' in body


def test_the_deadline_over_grpc_names_the_server_too(open_client: Any) -> None:
    ended = threading.Event()

    def silent(connection: socket.socket) -> None:
        connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # SETTINGS of HTTP/2, without which nothing is sent
        ended.wait(60)

    with server(silent) as url:
        place = f"grpc://{url}"
        client = open_client(place)
        with pytest.raises(DeadlineExceeded, match=f"^no answer from {place} within the deadline$"):
            client.infer("m", X, deadline_ms=300)
        ended.set()


def test_large_requests_and_answers(open_client: Any) -> None:
    count = 3_000_000
    sent = np.arange(count, dtype=np.float32)

    def serve(connection: socket.socket) -> None:
        body = read_request(connection)[-sent.nbytes :]
        message = json.loads(HEAD)
        message["outputs"][0].update(shape=[count], parameters={"binary_data_size": len(body)})
        head = json.dumps(message).encode()
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ninference-header-content-length: %d\r\ncontent-length: %d\r\n\r\n"
            % (len(head), len(head) + len(body))
        )
        connection.sendall(head + body)
        assert connection.recv(1) == b""

    with server(serve) as url:
        client = open_client(url)
        assert np.array_equal(client.infer("m", {"x": sent}, deadline_ms=60_000)["y"], sent)
        client.close()


@pytest.mark.parametrize("headers", [{"x-a": "1\r\nx-b: 2"}, {"x-a\r\nx-b": "1"}, {"x-a": "\u2603"}])
def test_headers_that_would_break_the_request_are_refused(open_client: Any, headers: dict[str, str]) -> None:
    with pytest.raises(isochrone.errors.InvalidArgument, match="headers: expected"):  # type: ignore[attr-defined]
        open_client("127.0.0.1:1", retries=0).infer("m", X, headers=headers)
