"""Calls etcd's JSON API at the member that answered last, and at the others if that one fails.

A read is sent to every member before the store counts as unavailable. A write goes to another member only if the first
one certainly did not process it; otherwise the call fails with an unknown outcome.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from isochrone.errors import ConfigError
from isochrone.resolving.http_transport import resolving_transport
from isochrone.store.base import StoreUnavailable
from isochrone.store.etcd.address import EtcdAddress
from isochrone.store.etcd.errors import EndpointFailed, TokenRefused, refusal
from isochrone.store.etcd.messages import Message, encoded_key

#: Of one call at one member.
CALL_SECONDS = 2.0
#: Of the call that checks whether a member still belongs to a majority.
CHECK_SECONDS = 1.2
_CONNECT_SECONDS = 1.0
#: Then another member is asked the same, while the first may still answer.
_PATIENCE_SECONDS = 0.4

Answer = TypeVar("Answer")


class EtcdApi:
    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self.shown = address.shown
        #: In the order of use. Processes start with different members, to spread the load.
        self._endpoints = list(address.endpoints)
        random.shuffle(self._endpoints)
        self._opened: httpx.AsyncClient | None = None
        self._token = ""
        self._closed = False

    async def read(self, path: str, body: Message) -> Message:
        """For calls that may be repeated."""
        _, answer = await self._first_answer(lambda endpoint: self._with_login(endpoint, path, body, CALL_SECONDS))
        return answer

    async def write(self, path: str, body: Message) -> Message:
        failures = []
        for endpoint in list(self._endpoints):
            try:
                return await self._with_login(endpoint, path, body, CALL_SECONDS)
            except EndpointFailed as error:
                failures.append(error)
                self.avoid(endpoint)
                if not error.unprocessed:
                    break
        raise self._away(failures)

    async def member_with_majority(self, key: str) -> str:
        """A member that answers a linearizable read, so that a watch there misses no change."""
        endpoint, _ = await self._first_answer(lambda endpoint: self.check(endpoint, key))
        return endpoint

    async def check(self, endpoint: str, key: str) -> None:
        """Raise ``EndpointFailed`` if the member does not belong to a majority."""
        body = {"key": encoded_key(key or "\0"), "keys_only": True}
        await self._with_login(endpoint, "kv/range", body, CHECK_SECONDS)

    def avoid(self, endpoint: str) -> None:
        """Move a failed member to the end."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    @asynccontextmanager
    async def stream(self, endpoint: str, path: str, body: Message) -> AsyncIterator[AsyncIterator[Message]]:
        """The answers of a streaming call. Raise ``EndpointFailed`` when it ends, for any reason."""
        timeout = httpx.Timeout(CALL_SECONDS, connect=_CONNECT_SECONDS, read=None)
        try:
            async with self._client().stream(
                "POST",
                f"{endpoint}/v3/{path}",
                content=msgspec.json.encode(body),
                headers=self._headers(),
                timeout=timeout,
            ) as response:
                if response.status_code != 200:
                    raise refusal(self.shown, endpoint, response.status_code, _decoded(await response.aread()))
                yield self._results(endpoint, response)
        except TokenRefused as error:
            # The next call logs in again.
            self._token = ""
            raise EndpointFailed(endpoint, _text(error), unprocessed=True) from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise EndpointFailed(endpoint, _text(error), unprocessed=False) from error

    async def close(self) -> None:
        self._closed = True
        if self._opened is not None:
            client, self._opened = self._opened, None
            await client.aclose()

    async def _results(self, endpoint: str, response: httpx.Response) -> AsyncIterator[Message]:
        async for line in response.aiter_lines():
            if not line:
                continue
            answer = _decoded(line.encode())
            if not isinstance(answer, dict) or "result" not in answer:
                raise refusal(self.shown, endpoint, response.status_code, answer)
            yield answer["result"]
        raise EndpointFailed(endpoint, "it ended the stream", unprocessed=False)

    async def _first_answer(self, ask: Callable[[str], Coroutine[Any, Any, Answer]]) -> tuple[str, Answer]:
        """Try one member after the other, the next also if one takes long: a lease must survive a member that hangs."""
        waiting = list(self._endpoints)
        asked: dict[asyncio.Task[Answer], str] = {}
        failures = []
        try:
            while waiting or asked:
                if waiting:
                    endpoint = waiting.pop(0)
                    asked[asyncio.create_task(ask(endpoint))] = endpoint
                patience = _PATIENCE_SECONDS if waiting else None
                done, _ = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    endpoint = asked.pop(task)
                    try:
                        answer = task.result()
                    except EndpointFailed as error:
                        failures.append(error)
                        self.avoid(endpoint)
                        continue
                    for slower in asked.values():
                        self.avoid(slower)
                    return endpoint, answer
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise self._away(failures)

    async def _with_login(self, endpoint: str, path: str, body: Message, seconds: float) -> Message:
        if self._address.user and not self._token:
            await self._log_in(endpoint)
        try:
            return await self._call(endpoint, path, body, seconds)
        except TokenRefused:
            await self._log_in(endpoint)
        try:
            return await self._call(endpoint, path, body, seconds)
        except TokenRefused as error:
            raise StoreUnavailable(f"store {self.shown}: etcd refuses the login: {error}") from error

    async def _log_in(self, endpoint: str) -> None:
        self._token = ""
        login = {"name": self._address.user, "password": self._address.password}
        self._token = (await self._call(endpoint, "auth/authenticate", login, CALL_SECONDS))["token"]

    async def _call(self, endpoint: str, path: str, body: Message, seconds: float) -> Message:
        try:
            # httpx limits each step; this limits their sum.
            async with asyncio.timeout(seconds):
                response = await self._client().post(
                    f"{endpoint}/v3/{path}", content=msgspec.json.encode(body), headers=self._headers()
                )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise EndpointFailed(endpoint, _text(error), unprocessed=True) from error
        except httpx.HTTPError as error:
            raise EndpointFailed(endpoint, _text(error), unprocessed=False) from error
        except TimeoutError:
            raise EndpointFailed(endpoint, f"no answer within {seconds} s", unprocessed=False) from None
        answer = _decoded(response.content)
        if response.status_code != 200 or not isinstance(answer, dict):
            raise refusal(self.shown, endpoint, response.status_code, answer)
        # A streaming call wraps its answer.
        result = answer.get("result", answer)
        if not isinstance(result, dict) or "header" not in result:
            raise EndpointFailed(endpoint, "not an etcd: its answer has no header", unprocessed=False)
        return result

    def _headers(self) -> dict[str, str]:
        # A member that has lost its leader answers at once, instead of after its own timeout.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self._token:
            headers["Authorization"] = self._token
        return headers

    def _client(self) -> httpx.AsyncClient:
        if self._closed:
            raise StoreUnavailable(f"store {self.shown}: it was closed")
        if self._opened is None:
            # Without proxies and other settings of the environment: a store is reached directly.
            self._opened = httpx.AsyncClient(
                transport=resolving_transport(
                    self._trust(), httpx.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=30)
                ),
                trust_env=False,
                timeout=httpx.Timeout(CALL_SECONDS, connect=_CONNECT_SECONDS),
            )
        return self._opened

    def _trust(self) -> ssl.SSLContext | bool:
        address = self._address
        if not any(endpoint.startswith("https:") for endpoint in address.endpoints):
            return False
        for option in ("ca", "cert", "key"):
            # The errors of the ssl module do not name the file.
            if path := getattr(address, option):
                try:
                    Path(path).read_bytes()
                except OSError as error:
                    given = f"{path} ({error.strerror})"
                    raise ConfigError("store", "url", f"a file that can be read after {option}=", given) from error
        path = address.ca
        try:
            context = ssl.create_default_context(cafile=address.ca or None)
            if path := address.cert:
                context.load_cert_chain(address.cert, address.key or None)
        except OSError as error:
            expected = "PEM files of certificates after ca=, cert= and key="
            raise ConfigError("store", "url", expected, f"{path} ({error})") from error
        return context

    def _away(self, failures: list[EndpointFailed]) -> StoreUnavailable:
        reasons = "; ".join(map(str, failures))
        return StoreUnavailable(
            f"store {self.shown}: no etcd member can process the call ({reasons}); "
            "a majority of its members must run and reach each other"
        )


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
