"""Upstreams from files and names: changes are told once, and a source that fails keeps what it had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from offline import OfflineLoop, offline

from isochrone.errors import ConfigError
from isochrone.gateway.monitoring.discovery import AnsweredAddresses, DnsSource, FileSource, read_upstreams
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream
from isochrone.resolving.resolver import DoesNotResolve, Resolver


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


class Names(Resolver):
    """Answers a look at once, without a thread."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.answer: tuple[str, ...] | str = addresses

    async def look(self, host: str, seconds: float = 1.0) -> tuple[str, ...]:
        assert host == "workers"
        if isinstance(self.answer, str):
            raise DoesNotResolve(host, self.answer)
        return self.answer


def test_a_name_is_resolved_again() -> None:
    async def run(loop: OfflineLoop) -> None:
        names = Names("10.0.0.2", "10.0.0.1", "10.0.0.2")
        heard = Heard()
        source = DnsSource(parse_upstream("workers:8000,grpc=9"), heard, lambda upstream: False, 0, names)
        await look(source, 3)
        assert heard.told == [["10.0.0.1:8000", "10.0.0.2:8000"]]
        names.answer = "Name or service not known"
        await look(source, 30)
        assert len(heard.told) == 1
        names.answer = ("10.0.0.3",)
        await look(source, 5)
        assert heard.told[1:] == [["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"], ["10.0.0.3:8000"]]

    offline(run)


def test_an_address_that_is_missing_for_a_look_stays() -> None:
    addresses = AnsweredAddresses()
    both = ("10.0.0.1", "10.0.0.2")
    for found in (both, both[:1], both[1:], both[:1], both[:1], both):
        assert addresses.answered(found, lambda address: False) == both
    counts = [len(addresses.answered(both[:1], lambda address: False)) for _ in range(4)]
    assert counts == [2, 2, 1, 1], "one that does not answer leaves at the third answer without it"


def test_a_healthy_worker_is_not_hurried_out() -> None:
    addresses = AnsweredAddresses()
    addresses.answered(("10.0.0.1", "10.0.0.2"), lambda address: True)
    counts = [len(addresses.answered(("10.0.0.1",), lambda address: True)) for _ in range(11)]
    assert counts == [2] * 9 + [1, 1]


def test_healthy_workers_stay_while_an_answer_has_none() -> None:
    addresses = AnsweredAddresses()
    healthy = {"10.0.0.1", "10.0.0.2"}
    addresses.answered(healthy, healthy.__contains__)
    for _ in range(100):
        assert addresses.answered(("192.0.2.9",), healthy.__contains__) == ("10.0.0.1", "10.0.0.2", "192.0.2.9")
    healthy.add("192.0.2.9")
    assert addresses.answered(("192.0.2.9",), healthy.__contains__) == ("192.0.2.9",)


def test_wrong_answers_do_not_pile_up() -> None:
    addresses = AnsweredAddresses()
    healthy = {"10.0.0.1"}
    addresses.answered(healthy, healthy.__contains__)
    for number in range(200):
        assert len(addresses.answered((f"192.0.2.{number}",), healthy.__contains__)) <= 4
