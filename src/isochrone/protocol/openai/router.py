"""Routing of ``/v1``: paths to routes, once per distinct message head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.errors import IsochroneError
from isochrone.protocol.openai.answers import OpenAIErrorRoute, inflating
from isochrone.protocol.openai.chat_body import read_chat
from isochrone.protocol.openai.completion_body import read_completion
from isochrone.protocol.openai.completions import CompletionRoute
from isochrone.protocol.openai.models import ModelsRoute
from isochrone.protocol.openai.paths import CHAT, MODELS, find_path
from isochrone.wire.exchange import Head, Route

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService


class OpenAIRouter:
    """Finds the route of a head."""

    def __init__(self, service: InferenceService, max_body_bytes: int) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes

    def route(self, head: Head) -> Route:
        try:
            path, model = find_path(head)
            if path == MODELS:
                return ModelsRoute(self._service, model)
            route = CompletionRoute(self._service, head, read_chat if path == CHAT else read_completion)
            return inflating(route, head, self._max_body_bytes)
        except IsochroneError as error:
            return OpenAIErrorRoute(error)
