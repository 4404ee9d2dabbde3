"""Names: literal addresses need no lookup, a lookup that hangs or fails falls back to the last addresses, lookups of
one name are shared, and the log has a line when that begins and ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from isochrone.resolving import resolver as module
from isochrone.resolving.resolver import DoesNotResolve, Resolver, is_literal, look_up


class NameServer:
    """Answers by name: addresses, an error, or silence (an event that a lookup waits for)."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.asked: list[str] = []
        self.threads: set[str] = set()

    def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        self.threads.add(threading.current_thread().name)
        answer = self.answers[name]
        if isinstance(answer, threading.Event):
            assert answer.wait(30)
            answer = self.answers[name + " late"]
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


@contextmanager
def silence() -> Iterator[threading.Event]:
    """Ends with the test, so that no thread stays."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated at once, and no time passes that a slow machine could exceed."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(module, "_PATIENCE", 30.0)
    monkeypatch.setattr(module, "LOOKUP_SECONDS", 30.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (a thread makes it true)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.255.0.7", "::1", "fe80::1%lo", "2001:db8::7"])
def test_literal_addresses_need_no_lookup(host: str) -> None:
    server = NameServer()
    names = Resolver(server)
    assert is_literal(host)
    assert asyncio.run(names.addresses(host)) == (host,)
    assert asyncio.run(names.look(host)) == (host,)
    assert names.look_blocking(host) == (host,)
    assert server.asked == []
    assert names.states() == []


@pytest.mark.parametrize("host", ["localhost", "workers.default.svc", "127.1", "10.0.0.300", "", "a:b", "nul\0"])
def test_names_are_not_literal(host: str) -> None:
    assert not is_literal(host)


def test_the_systems_resolver() -> None:
    found = look_up("localhost")
    assert found
    assert len(found) == len(set(found))
    assert all(map(is_literal, found))


def test_the_last_addresses_while_lookups_fail() -> None:
    server = NameServer(workers=["10.0.0.2", "10.0.0.1"])
    names = Resolver(server)

    async def scenario() -> None:
        assert await names.addresses("workers", 30) == ("10.0.0.2", "10.0.0.1"), "in the resolver's order"
        server.answers["workers"] = OSError(-3, "Temporary failure in name resolution")
        for _ in range(20):
            assert await names.addresses("workers", 30) == ("10.0.0.2", "10.0.0.1")
        with pytest.raises(DoesNotResolve, match="the name workers does not resolve: Temporary failure"):
            await names.look("workers", 30)
        assert names.fault("workers") == "Temporary failure in name resolution"
        server.answers["workers"] = ["10.0.0.3"]
        # Nobody asks: the resolver finds out by itself.
        await until(lambda: not names.fault("workers"))
        assert await names.addresses("workers", 30) == ("10.0.0.3",)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(line["log_level"], line["event"], line["name"]) for line in logs] == [
        ("warning", "a name does not resolve; its last addresses stay", "workers"),
        ("info", "a name resolves again", "workers"),
    ]
    assert logs[0]["error"] == "Temporary failure in name resolution"
    assert logs[1]["failures"] == names.states()[0].failures > 1


def test_the_last_addresses_while_a_lookup_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NameServer(workers=["10.0.0.1"], others=["10.0.1.1"])
    names = Resolver(server)

    async def scenario(hanging: threading.Event) -> None:
        await names.addresses("workers", 30)
        server.answers |= {"workers": hanging, "workers late": ["10.0.0.9"]}
        monkeypatch.setattr(module, "_PATIENCE", 0.01)
        monkeypatch.setattr(module, "LOOKUP_SECONDS", 0.01)
        for _ in range(20):
            assert await names.addresses("workers", 30) == ("10.0.0.1",)
        assert server.asked.count("workers") == 2, "a lookup that hangs is not begun again"
        assert await names.look("others", 30) == ("10.0.1.1",), "and stops no other"
        await until(lambda: names.fault("workers") == "no answer within 0.01 s")
        hanging.set()
        await until(lambda: not names.fault("workers"))
        assert await names.look("workers", 30) == ("10.0.0.9",)

    with capture_logs() as logs, silence() as hanging:
        asyncio.run(scenario(hanging))
    assert [line["event"] for line in logs] == [
        "a name does not resolve; its last addresses stay",
        "a name resolves again",
    ]


def test_a_lookup_that_hangs_uses_no_thread_of_the_default_executor() -> None:
    with silence() as hanging:
        answers: dict[str, Any] = {f"name{number}": hanging for number in range(64)}
        server = NameServer(**answers, **{f"{name} late": ["10.0.0.1"] for name in answers})
        names = Resolver(server)

        async def scenario() -> None:
            found = await asyncio.gather(*(names.look(name, 0.01) for name in answers), return_exceptions=True)
            assert all(isinstance(each, DoesNotResolve) for each in found)
            assert await asyncio.to_thread(lambda: "at once") == "at once"
            await until(lambda: len(server.asked) >= 16)
            assert len(server.asked) == 16, "threads are bounded"
            hanging.set()
            assert await names.look("name63", 30) == ("10.0.0.1",)

        with capture_logs():
            asyncio.run(scenario())
        assert server.threads == {"isochrone-lookup"}


def test_callers_share_a_lookup_and_one_that_leaves_harms_no_other() -> None:
    server = NameServer()
    names = Resolver(server)

    async def scenario(hanging: threading.Event) -> None:
        server.answers |= {"workers": hanging, "workers late": ["10.0.0.1"]}
        callers = [asyncio.ensure_future(names.look("workers", 30)) for _ in range(10)]
        await until(lambda: bool(server.asked))
        callers[0].cancel()
        hanging.set()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [("10.0.0.1",)] * 9
        assert server.asked == ["workers"]

    with silence() as hanging:
        asyncio.run(scenario(hanging))


def test_an_empty_answer_is_a_failure() -> None:
    server = NameServer(workers=["10.0.0.1"])
    names = Resolver(server)

    async def scenario() -> None:
        await names.addresses("workers", 30)
        server.answers["workers"] = []
        assert await names.addresses("workers", 30) == ("10.0.0.1",)
        with pytest.raises(DoesNotResolve, match="it has no address"):
            await names.look("workers", 30)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [OSError(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_never_resolved(error: Exception) -> None:
    names = Resolver(NameServer(workers=error))
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(DoesNotResolve, match=r"workers does not resolve: (Name or|label too)"):
                asyncio.run(names.addresses("workers", 30))
        with pytest.raises(DoesNotResolve):
            names.look_blocking("workers", 30)
    assert [line["event"] for line in logs] == ["a name does not resolve, and no address of it is known"]


def test_a_fault_of_a_lookup_ends_no_thread() -> None:
    names = Resolver(NameServer(workers=RuntimeError("what"), others=["10.0.0.1"]))
    with capture_logs(), pytest.raises(DoesNotResolve, match="RuntimeError: what"):
        names.look_blocking("workers", 30)
    assert names.look_blocking("others", 30) == ("10.0.0.1",)


def test_without_an_event_loop() -> None:
    with silence() as hanging:
        names = Resolver(NameServer(workers=hanging, **{"workers late": ["10.0.0.1"]}))
        with pytest.raises(DoesNotResolve, match=r"no answer within 0\.01 s"):
            names.look_blocking("workers", 0.01)


def test_names_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NAMES", 4)
    names = Resolver(lambda name: ["10.0.0.1"])
    for number in range(20):
        names.look_blocking(f"name{number}", 30)
        names.look_blocking("used again", 30)
    kept = {state.name for state in names.states()}
    assert len(kept) == 4
    assert "used again" in kept


def test_a_failing_name_that_nobody_asks_for_is_forgotten() -> None:
    server = NameServer(workers=["10.0.0.1"])
    now = 0
    names = Resolver(server, lambda: now)

    async def scenario() -> None:
        nonlocal now
        await names.addresses("workers", 30)
        server.answers["workers"] = OSError(-3, "Temporary failure")
        await names.addresses("workers", 30)
        await until(lambda: bool(names.fault("workers")))
        now = 10**12
        await until(lambda: not names.states())

    with capture_logs():
        asyncio.run(scenario())
