"""Upstreams from files and names: changes are told once, and a source that fails keeps what it had."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from offline import OfflineLoop, offline

from isochrone.errors import ConfigError
from isochrone.gateway.monitoring.discovery import DnsSource, FileSource, read_upstreams
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream


class Heard:
    """What a source told, and a way to wait for the next look."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def __call__(self, upstreams: Sequence[Upstream]) -> None:
        self.told.append([upstream.address for upstream in upstreams])


async def look(source: Any, times: int = 1) -> None:
    """Lets a source with an interval of 0 look so often."""
    task = asyncio.ensure_future(source.run())
    for _ in range(3 * times):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text("# all of them\na:1\n\n  b:2,tier=edge  # far away\n")
    assert [upstream.address for upstream in read_upstreams(path)] == ["a:1", "b:2"]
    path.write_text("a:1\nnonsense\n")
    with pytest.raises(ConfigError, match=rf"{path}:2"):
        read_upstreams(path)


def test_a_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run(loop: OfflineLoop) -> None:
        heard = Heard()
        source = FileSource(path, heard, interval=0)
        await look(source)
        assert heard.told == [], "a file that is not there yet"
        path.write_text("a:1\n")
        await look(source, 3)
        assert heard.told == [["a:1"]]
        path.write_text("a:1\nb:1\n")
        await look(source)
        path.write_text("what\n")
        await look(source)
        path.write_text("# nobody\n")
        await look(source)
        assert heard.told == [["a:1"], ["a:1", "b:1"], []]

    offline(run)


def test_a_name_is_resolved_again() -> None:
    async def run(loop: OfflineLoop) -> None:
        addresses: list[str] | OSError = ["10.0.0.2", "10.0.0.1", "10.0.0.2"]

        async def resolve(host: str, port: int, **keywords: Any) -> list[Any]:
            assert (host, port) == ("workers", 8000)
            if isinstance(addresses, OSError):
                raise addresses
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        loop.getaddrinfo = resolve  # type: ignore[assignment,method-assign]
        heard = Heard()
        source = DnsSource(parse_upstream("workers:8000,grpc=9"), heard, interval=0)
        await look(source, 3)
        assert heard.told == [["10.0.0.1:8000", "10.0.0.2:8000"]]
        addresses = socket.gaierror(-2, "Name or service not known")
        await look(source, 3)
        assert len(heard.told) == 1
        addresses = ["10.0.0.3"]
        await look(source, 3)
        assert heard.told[1:] == [["10.0.0.3:8000"]]

    offline(run)
