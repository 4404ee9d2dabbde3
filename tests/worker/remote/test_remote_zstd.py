"""Remote models with ``compression: "zstd"``: bodies that compress, those that do not, answers, deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import zstandard

from isochrone.client.address import Certificates, parse_address
from isochrone.client.answers import Outputs
from isochrone.client.calls import make_call
from isochrone.client.http.async_transport import AsyncHttpTransport
from isochrone.errors import DeadlineExceeded, Internal
from recording_core import RecordingCore, http_core

#: Below what is compressed; on the event loop; on a thread.
SIZES = (100, 4000, 400_000)


def read(headers: dict[str, str], body: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(body) if headers.get("content-encoding") == "zstd" else body


def packed(body: bytes) -> tuple[dict[str, str], bytes]:
    return {"content-encoding": "zstd"}, zstandard.ZstdCompressor().compress(body)


def ask(core: RecordingCore, x: Any, level: int | None = 1, seconds: float | None = 60.0) -> Any:
    async def scenario() -> Any:
        transport = AsyncHttpTransport(parse_address(core.address), Certificates(), level)
        try:
            call = make_call("m", {"x": x}, None, "1", None, "", 0, None, None)
            return (await transport.infer(call, seconds))["y"]
        finally:
            await transport.close()

    return asyncio.run(scenario())


def test_bodies_are_sent_in_zstd_where_that_makes_them_smaller() -> None:
    random = np.random.default_rng(1)
    with http_core() as core:
        core.decode = read
        for size in SIZES:
            sparse = np.zeros((1, size // 4), np.float32)
            noise = random.integers(0, 256, (1, size // 4 * 4), np.uint8).view(np.float32)
            for x, shrinks in ((sparse, size > 1000), (noise, False)):
                np.testing.assert_array_equal(ask(core, x).view(np.uint8), x.view(np.uint8))
                headers, body = core.headers.pop(), core.bodies.pop()
                assert (headers.get("content-encoding") == "zstd") == shrinks
                assert headers["accept-encoding"] == "zstd"
                assert (len(body) < x.nbytes) == shrinks
                assert float(headers["x-request-timeout-ms"]) > 0
        ask(core, sparse, level=None)
        assert not {"content-encoding", "accept-encoding"} & core.headers[0].keys()


def test_the_level_is_the_given_one() -> None:
    x = np.random.default_rng(1).integers(0, 4, (1, 100_000)).astype(np.float32)
    with http_core() as core:
        core.decode = read
        for level in (1, 19):
            ask(core, x, level)
    assert len(core.bodies[1]) < len(core.bodies[0])


@pytest.mark.parametrize("size", SIZES)
def test_answers_in_zstd_are_read(size: int) -> None:
    x = np.arange(size // 4, dtype=np.float32)[None]
    with http_core() as core:
        core.decode, core.encode = read, packed
        answer = ask(core, x)
    np.testing.assert_array_equal(answer, x)
    assert not answer.flags.writeable


def test_an_answer_may_expand_more_than_a_request() -> None:
    x = np.zeros((1, 10 << 20), np.float32)
    with http_core() as core:
        core.decode, core.encode = read, packed
        np.testing.assert_array_equal(ask(core, x), x)
        # A server would refuse it as a bomb.
        assert "content-encoding" not in core.headers[0]


def test_an_answer_that_does_not_decompress_is_one_clear_error() -> None:
    with http_core() as core:
        core.encode = lambda body: ({"content-encoding": "zstd"}, b"no frame")
        with pytest.raises(Internal, match="cannot be read: the zstd body does not decompress"):
            ask(core, np.zeros((1, 8), np.float32))


def test_compression_takes_its_time_from_the_deadline() -> None:
    with http_core() as core, pytest.raises(DeadlineExceeded):
        ask(core, np.random.default_rng(1).standard_normal((1, 1 << 18)).astype(np.float32), 19, seconds=0.01)
    assert not core.headers


@pytest.mark.parametrize("level", [None, 1])
def test_outputs_say_what_crossed_the_network_and_the_time_before(level: int | None) -> None:
    x = np.zeros((1, 100_000), np.float32)

    async def scenario(address: str) -> list[Outputs]:
        transport = AsyncHttpTransport(parse_address(address), Certificates(), level)
        try:
            call = make_call("m", {"x": x}, None, "1", None, "", 0, None, None)
            return [await transport.infer(call, 60.0) for _ in range(2)]
        finally:
            await transport.close()

    with http_core() as core:
        core.decode = read
        answers = asyncio.run(scenario(core.address))
        assert [each.sent_bytes for each in answers] == [len(body) for body in core.bodies]
    assert all(each.received_bytes >= x.nbytes for each in answers)
    # The first one connects; both compress.
    assert all(each.unsent_ns is not None and each.unsent_ns > 0 for each in answers)
