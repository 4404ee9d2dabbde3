"""A worker, a gateway before it, and a client of either, blocking or not, over either protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import isochrone
from gateway_process import Fleet, StartGateway
from sample_models import DATATYPES, write_models
from server_process import StartServer

MODELS = (*(f"identity_{name.lower()}" for name in DATATYPES), "repeat", "slow", "raises", "versions", "words")


@pytest.fixture(scope="session")
def fleet(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    repository: Path = write_models(tmp_path_factory.mktemp("client") / "models", *MODELS)
    with server_factory(repository) as worker, gateway_factory([worker]) as gateway:
        yield Fleet(gateway, (worker,))


class SyncCalls:
    """The asynchronous client as if it blocked: every test runs with both."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = isochrone.AsyncClient(url, **options)

    def stream(self, *arguments: Any, **options: Any) -> list[Any]:
        async def run() -> list[Any]:
            return [response async for response in self._client.stream(*arguments, **options)]

        return self._runner.run(run())

    def end(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._client, name)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))


OpenClient = Callable[..., Any]


@pytest.fixture(params=["blocking", "async"])
def open_client(request: pytest.FixtureRequest) -> Iterator[OpenClient]:
    """``open_client(url)``: closed with the test."""
    opened: list[Any] = []

    def make(url: str, **options: Any) -> Any:
        opened.append(isochrone.Client(url, **options) if request.param == "blocking" else SyncCalls(url, **options))
        return opened[-1]

    yield make
    for client in opened:
        client.end() if isinstance(client, SyncCalls) else client.close()


@pytest.fixture(params=["worker", "gateway"])
def place(request: pytest.FixtureRequest, fleet: Fleet) -> Any:
    return fleet.gateway if request.param == "gateway" else fleet.workers[0]


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, place: Any, open_client: OpenClient) -> Any:
    """Eight of them: both shells, both protocols, before a worker and before a gateway."""
    return open_client(f"grpc://{place.grpc_url}" if request.param == "grpc" else place.http_url)
