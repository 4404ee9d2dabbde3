"""What processes say of themselves, asked of a real socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from isochrone.engines.supervision import probes


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about the limit, which a busy machine may miss."""
    monkeypatch.setattr(probes, "_SECONDS", 30.0)


def test_the_first_model_that_is_not_served_ends_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def serves(host: str, port: int, model: str, tls: bool, credential: bytes) -> bool:
        asked.append(model)
        return model == "a"

    monkeypatch.setattr(probes, "serves", serves)
    assert asyncio.run(probes.serves_all("h", 1, ["a", "b", "c"])) is False
    assert asked == ["a", "b"]
    assert asyncio.run(probes.serves_all("h", 1, ["a"])) is True


async def _asked(head: bytes) -> int | None:
    """What is read from a worker that answers so."""
    heard = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(head)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        found = await probes.in_flight("127.0.0.1", server.sockets[0].getsockname()[1])
    assert b"endpoint-load-metrics-format: text\r\n" in heard
    return found


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT named_metrics.in_flight=0.0, x=1\r\n\r\n", 0),
        (b'HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: JSON {"named_metrics": {"in_flight": 3.0}}\r\n\r\n', 3),
        (b"HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT named_metrics.queue_depth=0.0\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nendpoint-load-metrics: nonsense\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"", None),
    ],
)
def test_the_figure_is_read_where_there_is_one(head: bytes, found: int | None) -> None:
    assert asyncio.run(_asked(head)) == found


@pytest.mark.parametrize(("status", "found"), [(b"200 OK", True), (b"400 Bad Request", False), (b"", False)])
def test_whether_a_model_is_served(status: bytes, found: bool) -> None:
    assert asyncio.run(_serves(status)) is found


async def _serves(status: bytes) -> bool:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /v2/models/a%20b/ready HTTP/1.1\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        return await probes.serves("127.0.0.1", server.sockets[0].getsockname()[1], "a b")


def test_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert asyncio.run(probes.in_flight("127.0.0.1", port)) is None
        assert asyncio.run(probes.answers("127.0.0.1", port)) is False
        assert asyncio.run(probes.serves("127.0.0.1", port, "m")) is False
        taken.listen(1)
        assert asyncio.run(probes.answers("0.0.0.0", port)) is True


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            b'200 OK\r\n\r\n[{"name": "m", "version": "1", "state": "READY", "digest": "sha256:ab"},'
            b' {"name": "m", "version": "2", "state": "LOADING"}, {"name": "n"}]',
            {("m", "1"): "ab"},
        ),
        (b"403 Forbidden\r\n\r\n[]", None),
        (b"200 OK\r\n\r\nno JSON", None),
        (b"", None),
    ],
)
def test_what_a_worker_serves(answer: bytes, found: dict[tuple[str, str], str] | None) -> None:
    async def ask() -> dict[tuple[str, str], str] | None:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /v2/repository/index HTTP/1.1\r\n")
            writer.write(b"HTTP/1.1 " + answer if answer else b"")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        async with server:
            return await probes.served("127.0.0.1", server.sockets[0].getsockname()[1])

    assert asyncio.run(ask()) == found
