"""REST's control calls: a fault of the server is answered with 500 and logged, never left without an answer."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from isochrone.protocol.control_json import is_repeated, model_statistics_json
from isochrone.protocol.rest.router import RestRouter
from isochrone.wire.exchange import Head


class Answered:
    """An exchange that keeps what it was answered with."""

    def __init__(self, method: bytes, target: bytes, body: bytes = b"") -> None:
        self.head = Head(method, target, ())
        self.body = body
        self.status = 0
        self.text = b""

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.text = status, b"".join(body)


class Broken:
    """A service whose calls raise what nobody expects."""

    shared_memory = None
    control_token = None

    def server_metadata(self) -> Any:
        raise RuntimeError("out of luck")

    def repository_index(self, only_ready: bool) -> Any:
        # An answer that cannot be rendered.
        return SimpleNamespace(models=[SimpleNamespace()])

    async def load(self, name: str, parameters: Any) -> None:
        raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    ("method", "target"),
    [(b"GET", b"/v2"), (b"POST", b"/v2/repository/index"), (b"POST", b"/v2/repository/models/m/load")],
)
def test_an_unexpected_error_is_500(method: bytes, target: bytes) -> None:
    async def ask() -> Answered:
        exchange: Any = Answered(method, target)
        RestRouter(Broken(), 1024).route(exchange.head).handle(exchange)  # type: ignore[arg-type]
        for _ in range(5):
            await asyncio.sleep(0)
        return exchange  # type: ignore[no-any-return]

    answer = asyncio.run(ask())
    assert answer.status == 500
    assert "Error: " in json.loads(answer.text)["error"]


@pytest.mark.parametrize(("default", "expected"), [([], True), (0, False), (None, False)])
def test_repeated_fields_are_told_without_what_protobuf_5_lacks(default: Any, expected: bool) -> None:
    # FieldDescriptor.is_repeated came with protobuf 6.31, pyproject.toml allows 5.29.
    assert is_repeated(SimpleNamespace(default_value=default)) is expected


class Busy:
    """A service with the statistics of fifty models."""

    shared_memory = None
    control_token = None

    def model_statistics(self, name: str, version: str) -> Any:
        models = [{"name": f"m{number}", "inference_count": number} for number in range(50)]
        return service_pb2.ModelStatisticsResponse(model_stats=models)


def test_statistics_of_many_models_are_rendered_over_several_turns_of_the_loop() -> None:
    async def ask() -> tuple[Answered, int]:
        exchange: Any = Answered(b"GET", b"/v2/models/stats")
        RestRouter(Busy(), 1024).route(exchange.head).handle(exchange)  # type: ignore[arg-type]
        turns = 0
        while not exchange.status:
            turns += 1
            await asyncio.sleep(0)
        return exchange, turns

    answer, turns = asyncio.run(ask())
    assert answer.status == 200
    assert json.loads(answer.text) == model_statistics_json(Busy().model_statistics("", ""))
    assert turns > 10
