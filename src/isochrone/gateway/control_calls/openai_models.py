"""GET /v1/models through a gateway: the models of the fleet that generate text.

Workers know which of their models do. Of workers that serve the same models, one is asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import IsochroneError, Unavailable
from isochrone.gateway.upstream.calls import ask_http
from isochrone.protocol.openai.answers import ModelNotFound, respond_error, unexpected
from isochrone.protocol.openai.model_names import split_name
from isochrone.protocol.openai.models import model_list
from isochrone.protocol.rest.answers import JSON
from isochrone.wire.exchange import Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.gateway import Gateway

_SECONDS = 10.0
_PASSED = frozenset((b"accept", b"authorization"))

_calls = BackgroundTasks()


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


_models = msgspec.json.Decoder(_Models)


class OpenAIModelsRoute(Route):
    """``model`` "": all of them."""

    def __init__(self, gateway: Gateway, head: Head, model: str) -> None:
        self._gateway = gateway
        self._model = model
        passed = tuple(header for header in head.headers if header[0] in _PASSED)
        self._headers: Headers = passed + gateway.fleet.credential.for_caller(passed, head.peer)

    def handle(self, exchange: Exchange) -> None:
        _calls.start(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            models = await self._find()
            answer = self._one(models) if self._model else model_list([models[name] for name in sorted(models)])
            exchange.respond(200, JSON, [msgspec.json.encode(answer)])
        except IsochroneError as error:
            respond_error(exchange, error)
        except Exception as error:
            respond_error(exchange, unexpected(error))

    def _one(self, models: dict[str, dict[str, Any]]) -> dict[str, Any]:
        name, version = split_name(self._model, self._gateway.fleet.knows)
        if name not in models or not self._gateway.is_model_ready(name, version):
            raise ModelNotFound(f"The model '{self._model[:200]}' does not exist")
        return {**models[name], "id": self._model}

    async def _find(self) -> dict[str, dict[str, Any]]:
        """By name."""
        # Members with the same index share it.
        asked = {id(member.serves): member for member in self._gateway.fleet.healthy}.values()
        if not asked:
            raise Unavailable("no worker is ready")
        found: dict[str, dict[str, Any]] = {}
        faults: list[IsochroneError] = []
        for answer in await asyncio.gather(*(self._ask(member) for member in asked)):
            if isinstance(answer, IsochroneError):
                faults.append(answer)
            else:
                for model in answer:
                    name = str(model.get("id", ""))
                    if name not in found and self._gateway.is_model_ready(name, ""):
                        found[name] = model
        if len(faults) == len(asked):
            raise faults[0]
        return found

    async def _ask(self, member: Member) -> list[dict[str, Any]] | IsochroneError:
        address = member.upstream.address
        try:
            answer = await ask_http(member.connections, b"GET", b"/v1/models", self._headers, seconds=_SECONDS)
            if answer.status == 200:
                return _models.decode(answer.body).data
        except IsochroneError as error:
            return error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Unavailable(f"worker {address} answered /v1/models with something else: {error}")
        return Unavailable(f"worker {address} answered /v1/models with HTTP {answer.status}")
