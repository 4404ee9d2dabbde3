"""GET /v1/models and /v1/models/{model}: the models that calls of this front can name."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import IsochroneError
from isochrone.protocol.openai.answers import ModelNotFound, respond_error, unexpected
from isochrone.protocol.openai.completions import find_model
from isochrone.protocol.openai.tensors import text_model
from isochrone.protocol.rest.answers import JSON
from isochrone.protocol.services.deferred_answers import then
from isochrone.wire.exchange import Exchange, Route

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService

#: Clients expect when a model was made, which nobody knows: when this process began.
_CREATED = int(time.time())


def model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "isochrone"}


def model_list(models: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": models}


class ModelsRoute(Route):
    """``model`` "": all of them."""

    _tasks = BackgroundTasks()

    def __init__(self, service: InferenceService, model: str) -> None:
        self._service = service
        self._model = model

    def handle(self, exchange: Exchange) -> None:
        try:
            answer = self._one() if self._model else then(self._service.repository_index(True), self._all)
            if not isinstance(answer, Awaitable):
                _respond(exchange, answer)
                return
        except IsochroneError as error:
            respond_error(exchange, error)
            return
        except Exception as error:
            respond_error(exchange, unexpected(error))
            return
        self._tasks.start(self._finish(exchange, answer))

    async def _finish(self, exchange: Exchange, answer: Awaitable[Any]) -> None:
        try:
            _respond(exchange, await answer)
        except IsochroneError as error:
            respond_error(exchange, error)
        except Exception as error:
            respond_error(exchange, unexpected(error))

    def _one(self) -> Any:
        if not find_model(self._service, self._model, None).is_served:
            raise ModelNotFound(f"The model '{self._model[:200]}' does not generate text")
        return model_object(self._model)

    def _all(self, index: Any) -> Any:
        names = sorted({row.name for row in index.models if row.state == "READY"})
        return model_list([model_object(name) for name in names if self._is_served(name)])

    def _is_served(self, name: str) -> bool:
        service = getattr(self._service, "uncounted", self._service)
        try:
            return text_model(service, name, "").is_served
        except IsochroneError:
            return False  # unloaded in the meantime, or not for this caller


def _respond(exchange: Exchange, answer: Any) -> None:
    exchange.respond(200, JSON, [msgspec.json.encode(answer)])
