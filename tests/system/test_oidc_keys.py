"""A source of keys against a provider that rotates, goes away and misbehaves: a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jws

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.key_set import UnknownKey
from isochrone.secure.oidc.keys import KeySource
from isochrone.secure.oidc.settings import Provider

DISCOVERY = "/.well-known/openid-configuration"


def new_key(name: str) -> Any:
    return jwk.generate_key("EC", "P-256", {"kid": name}, private=True)


class Issuer:
    """Answers discovery and key set; ``answers`` replaces what a path answers, as bytes on the connection."""

    def __init__(self) -> None:
        self.keys = [new_key("first")]
        self.requests: list[str] = []
        self.answers: dict[str, bytes] = {}
        self.url = ""
        self.port = 0
        self._arrivals: asyncio.Queue[str] = asyncio.Queue()
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            self.requests.append(path)
            self._arrivals.put_nowait(path)
            writer.write(self.answers[path] if path in self.answers else _ok(self._document(path)))
            await writer.drain()
            if self.answers.get(path) == b"":
                await asyncio.Event().wait()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._connections.discard(task)

    def _document(self, path: str) -> dict[str, Any]:
        if path == DISCOVERY:
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def token(self, key: Any, **changes: Any) -> str:
        stated = {"iss": self.url, "aud": "fleet", "sub": "ada", "exp": time.time() + 600, **changes}
        return jws.serialize_compact({"alg": "ES256", "kid": key.kid}, json.dumps(stated), key, ["ES256"])

    async def has_key_fetches(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.key_fetches() < count:
                await self._arrivals.get()

    def key_fetches(self) -> int:
        return self.requests.count("/keys")


def _ok(document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def started(
    issuer: Issuer, clock: Callable[[], float], cache: Path | None = None, **settings: Any
) -> AsyncIterator[KeySource]:
    source = KeySource(replace(Provider(issuer.url, "fleet"), **settings), cache, clock=clock)
    await source.start()
    try:
        yield source
    finally:
        await source.stop()


def run(scenario: Callable[[Issuer, Clock], Any]) -> None:
    async def whole() -> None:
        issuer = Issuer()
        async with issuer.serving():
            await scenario(issuer, Clock())

    asyncio.run(whole())


def test_keys_are_at_hand_after_the_start() -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock) as source:
            assert source.verifier.verify(issuer.token(issuer.keys[0]), time.time()).subject == "ada"
            assert issuer.requests == [DISCOVERY, "/keys"]

    run(scenario)


def test_a_rotated_key_is_fetched_for_its_first_token() -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock) as source:
            old, new = issuer.keys[0], new_key("second")
            issuer.keys = [new, old]
            clock.now += 11
            with pytest.raises(UnknownKey):
                source.verifier.verify(issuer.token(new), time.time())
            assert await source.refresh()
            for key in (new, old):
                assert source.verifier.verify(issuer.token(key), time.time())
            issuer.keys = [new]
            clock.now += 11
            assert await source.refresh()
            with pytest.raises(UnknownKey):
                source.verifier.verify(issuer.token(old), time.time())

    run(scenario)


def test_a_thousand_strange_tokens_are_one_fetch() -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock) as source:
            clock.now += 11
            fetched = await asyncio.gather(*(source.refresh() for _ in range(1000)))
            assert all(fetched)
            assert issuer.key_fetches() == 2
            # And for ten seconds, none.
            assert not any([await source.refresh() for _ in range(1000)])
            clock.now += 9.9
            assert not await source.refresh()
            assert issuer.key_fetches() == 2
            clock.now += 0.2
            assert await source.refresh()
            assert issuer.key_fetches() == 3

    run(scenario)


def test_keys_are_fetched_again_at_intervals() -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        source = KeySource(Provider(issuer.url, "fleet", refresh_seconds=0.02))
        await source.start()
        try:
            await issuer.has_key_fetches(4)
        finally:
            await source.stop()

    run(scenario)


def test_a_caller_that_is_cancelled_cancels_no_fetch_of_others() -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock) as source:
            clock.now += 11
            # The first begins the fetch, the others join it.
            first, second, third = (asyncio.create_task(source.refresh()) for _ in range(3))
            await asyncio.sleep(0)
            first.cancel()
            second.cancel()
            assert await third
            assert first.cancelled()
            assert second.cancelled()
            assert issuer.key_fetches() == 2

    run(scenario)


def test_old_keys_remain_while_the_provider_is_away() -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        away = Issuer()
        async with away.serving():
            source = KeySource(Provider(away.url, "fleet"), clock=clock)
            await source.start()
        try:
            clock.now += 11
            assert not await source.refresh()
            assert "connect" in source.failure.lower()
            assert source.verifier.verify(away.token(away.keys[0]), time.time())
            with pytest.raises(UnknownKey, match="not answered for 24 h"):
                source.verifier.verify(away.token(away.keys[0], exp=time.time() + 10**6), time.time() + 86_400 + 60)
            async with away.serving():
                clock.now += 11
                assert await source.refresh()
                assert source.failure == ""
        finally:
            await source.stop()

    run(scenario)


def test_a_server_starts_with_kept_keys_and_without_any(tmp_path: Path) -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        away, cache = Issuer(), tmp_path / "keys.json"
        async with away.serving(), started(away, clock, cache):
            pass
        token = away.token(away.keys[0])
        async with started(away, clock, cache) as source:
            assert source.verifier.verify(token, time.time())
        async with started(away, clock) as source:
            with pytest.raises(UnknownKey, match="not been fetched yet"):
                source.verifier.verify(token, time.time())
        cache.chmod(0o666)
        async with started(away, clock, cache) as source:
            with pytest.raises(UnknownKey):
                source.verifier.verify(token, time.time())

    run(scenario)


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (DISCOVERY, _ok({"issuer": "https://other.example"}), "states the issuer 'https://other.example'"),
        (
            DISCOVERY,
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "answered 302",
        ),
        (DISCOVERY, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "is not a JSON object"),
        (DISCOVERY, b"SSH-2.0-OpenSSH\r\n", DISCOVERY),
        ("/keys", b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", "/keys answered 500"),
        ("/keys", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"x" * 600_000, "more than 524288 bytes"),
        ("/keys", b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", "content-encoding"),
        ("/keys", b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", "/keys"),
        ("/keys", _ok({"keys": []}), "no key that verifies signatures"),
        ("/keys", _ok({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "first"}]}), "another type of key"),
    ],
)
def test_a_provider_that_misbehaves_changes_no_key(path: str, answer: bytes, reason: str) -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock) as source:
            issuer.answers[path] = answer
            clock.now += 11
            assert not await source.refresh()
            assert reason in source.failure
            assert source.verifier.verify(issuer.token(issuer.keys[0]), time.time())

    run(scenario)


def test_a_provider_that_never_answers_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock) as source:
            issuer.answers["/keys"] = b""
            clock.now += 11
            fetch = asyncio.create_task(source.refresh())
            await issuer.has_key_fetches(2)
        with pytest.raises(asyncio.CancelledError):
            await fetch
        monkeypatch.setattr("isochrone.secure.oidc.fetching.TIMEOUT_SECONDS", 0.2)
        async with started(issuer, clock) as source:
            assert "did not answer within 0.2 s" in source.failure

    run(scenario)


def test_a_ca_that_cannot_be_read(tmp_path: Path) -> None:
    async def scenario(issuer: Issuer, clock: Clock) -> None:
        async with started(issuer, clock, ca=str(tmp_path / "missing.pem")) as source:
            assert "ca: expected a PEM file of certificates" in source.failure
            with pytest.raises(Unauthenticated):
                source.verifier.verify(issuer.token(issuer.keys[0]), time.time())

    run(scenario)
