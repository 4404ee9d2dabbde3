"""Servers that do not take zstd, answers that nobody asked for, and answers that are too large."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import zstandard

from isochrone.client.address import Certificates, parse_address
from isochrone.client.calls import make_call
from isochrone.client.http import async_transport, body_compression
from isochrone.client.http.async_transport import AsyncHttpTransport
from isochrone.errors import Cancelled, Internal, Unsupported, UnsupportedEncoding
from isochrone.protocol.compression.codec import Inflation, needs_thread
from recording_core import http_core

X = np.zeros((1, 4000), np.float32)


class Refusing:
    """Answers bodies in zstd with a status, plain ones with an empty list of outputs."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.refuses_all = False
        self.encodings: list[str | None] = []


@contextmanager
def serving(core: Refusing) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            encoding = self.headers["content-encoding"]
            core.encodings.append(encoding)
            refused = encoding == "zstd" or core.refuses_all
            body = json.dumps({"error": "no zstd"} if refused else {"outputs": []}).encode()
            self.send_response(core.status if refused else 200)
            for name, value in (("content-length", str(len(body))), *(core.headers if refused else {}).items()):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def ask(transport: AsyncHttpTransport) -> Any:
    return await transport.infer(make_call("m", {"x": X}, None, "1", None, "", 0, None, None), 60.0)


async def ask_often(address: str, times: int) -> None:
    transport = AsyncHttpTransport(parse_address(address), Certificates(), 1)
    try:
        for _ in range(times):
            await ask(transport)
    finally:
        await transport.close()


@pytest.mark.parametrize(("status", "headers"), [(415, {}), (501, {"accept-encoding": "gzip, deflate"})])
def test_a_server_without_zstd_gets_plain_bodies(status: int, headers: dict[str, str]) -> None:
    core = Refusing(status, headers)
    with serving(core) as address:
        asyncio.run(ask_often(address, 3))
    assert core.encodings == ["zstd", None, None, None]


def test_after_a_while_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "_PLAIN_SECONDS", 0.0)
    core = Refusing(415, {})
    with serving(core) as address:
        asyncio.run(ask_often(address, 2))
    assert core.encodings == ["zstd", None, "zstd", None]


@pytest.mark.parametrize(
    ("status", "headers", "error", "encodings"),
    [
        (415, {}, UnsupportedEncoding, ["zstd", None]),
        # Another feature that it lacks.
        (501, {}, Unsupported, ["zstd"]),
        (501, {"accept-encoding": "gzip, deflate, zstd"}, Unsupported, ["zstd"]),
    ],
)
def test_other_refusals_are_the_callers(
    status: int, headers: dict[str, str], error: type[Exception], encodings: list[str | None]
) -> None:
    core = Refusing(status, headers)
    core.refuses_all = True
    with serving(core) as address, pytest.raises(error):
        asyncio.run(ask_often(address, 1))
    assert core.encodings == encodings


def test_an_answer_in_an_encoding_that_was_not_asked_for_is_not_read() -> None:
    with http_core() as core:
        core.decode = lambda headers, body: zstandard.ZstdDecompressor().decompress(body)
        core.encode = lambda body: ({"content-encoding": "gzip"}, gzip.compress(body))
        with pytest.raises(Internal, match="content-encoding 'gzip', and zstd was asked for"):
            asyncio.run(ask_often(core.address, 1))


def test_an_answer_may_expand_to_the_given_limit() -> None:
    packed = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    headers = {"content-encoding": "zstd"}
    assert len(asyncio.run(body_compression.unpacked(headers, packed, "core", 1 << 20))) == 1 << 20
    with pytest.raises(Internal, match="larger than"):
        asyncio.run(body_compression.unpacked(headers, packed, "core", (1 << 20) - 1))


def test_a_cancelled_caller_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    ended: list[BaseException] = []
    finish = Inflation.finish

    def waiting(inflation: Inflation) -> bytearray:
        begun.set()
        while not inflation.abandoned:
            pass
        try:
            return finish(inflation)
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr(Inflation, "finish", waiting)
    packed = zstandard.ZstdCompressor().compress(bytes(1 << 20))

    async def scenario() -> None:
        task = asyncio.create_task(
            body_compression.unpacked({"content-encoding": "zstd"}, packed, "core", 1 << 30),
        )
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    body_compression._threads.submit(lambda: None).result()
    body_compression._threads.submit(lambda: None).result()
    assert all(isinstance(error, Cancelled) for error in ended)


def test_high_levels_are_for_a_thread() -> None:
    assert not needs_thread(32 * 1024, 3)
    assert needs_thread(2048, 4)
