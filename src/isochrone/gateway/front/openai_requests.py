"""The codec of OpenAI's calls: HTTP requests whose model is named in the body.

The body passes unchanged. The header ``x-isochrone-model`` pins the version that the gateway has chosen: a worker
answers with that version or not at all. Streams are passed on as they come. Errors have OpenAI's form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from isochrone.errors import IsochroneError, NotFound
from isochrone.gateway.caller_requests import UpstreamAttempt
from isochrone.gateway.front.discarding_exchange import DiscardingExchange
from isochrone.gateway.front.generate_requests import token_deadlines
from isochrone.gateway.front.http_requests import HttpRequest, HttpRoute
from isochrone.gateway.requests.request import Attempt
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.parameters import NONE, Parameters
from isochrone.gateway.traffic.prompts import OpenAIFields, openai_fields
from isochrone.gateway.traffic.token_counts import TAIL, usage_in
from isochrone.protocol.openai.answers import InvalidParameter, ModelNotFound, error_object, respond_error
from isochrone.protocol.openai.model_names import MODEL_HEADER, pinned_value, split_name
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.gateway.evaluation.sampling import Samples
    from isochrone.gateway.fleet.replica_set import ReplicaSet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway

#: Models of one head whose routes are remembered.
_MOST_ROUTES = 256


class OpenAIRoute(Route):
    """Calls with one head, of any model."""

    def __init__(self, gateway: Gateway, head: Head) -> None:
        self._gateway = gateway
        self._head = head
        self._routes: dict[tuple[str, str, bool], OpenAIModelRoute] = {}
        # Raises for a head that is wrong, whatever the model.
        self._route("", "", False)

    def handle(self, exchange: Exchange) -> None:
        fleet = self._gateway.fleet
        given = ""
        try:
            fields = openai_fields(exchange.body)
            given = fields.model
            if not given:
                raise InvalidParameter("model", "'model': expected the name of a model", "missing_required_parameter")
            model, version = split_name(given, fleet.knows)
            served = fleet.models.get(model) or fleet.model(model)
            request = OpenAIRequest(self._route(model, version, fields.streams), exchange, served, fields)
        except NotFound as error:
            exchange.owner = None
            respond_error(exchange, ModelNotFound(f"The model '{given[:200]}' does not exist: {error}"))
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error)
        else:
            self._gateway.arrive(request)

    def _route(self, model: str, version: str, streams: bool) -> OpenAIModelRoute:
        key = (model, version, streams)
        route = self._routes.get(key)
        if route is None:
            # A stream of answers is passed on as it comes: nothing of it can be taken back.
            kind = Kind.STREAM if streams else Kind.STATELESS
            route = OpenAIModelRoute(self._gateway, self._head, model, version, self._head.target, kind)
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            self._routes[key] = route
        return route


class OpenAIModelRoute(HttpRoute):
    """Calls with one head and one model."""

    #: Compressed bodies have been decompressed.
    dropped: ClassVar[frozenset[bytes]] = frozenset((b"content-encoding", b"inference-header-content-length"))

    def __init__(self, gateway: Gateway, head: Head, model: str, version: str, path: bytes, kind: Kind) -> None:
        super().__init__(gateway, head, model, version, path, kind)
        self.json_length = -1

    def _pins(self, replica_set: ReplicaSet) -> Headers:
        return ((MODEL_HEADER, pinned_value(self.model, replica_set.version)),)

    def _target(self, version: str) -> bytes:
        return self.path


class OpenAIRequest(HttpRequest):
    """One call."""

    def __init__(self, route: OpenAIModelRoute, exchange: Exchange, served: ServedModel, fields: OpenAIFields) -> None:
        self._fields = fields
        #: What was passed on ends with an event.
        self._is_between_events = False
        super().__init__(route, exchange, served)
        if fields.tokens is not None:
            self.demand = self.demand.with_tokens(token_deadlines(fields.tokens, self.arrived))

    def _glance(self, start: bytes | None) -> Parameters | None:
        priority = self._fields.priority
        return Parameters(priority=priority) if priority else NONE

    def read_prompt(self) -> bytes:
        return self._fields.prompt

    def copy(self, served: ServedModel) -> HttpRequest:
        route = self.route.for_model(served.name)
        assert isinstance(route, OpenAIModelRoute)
        return OpenAIRequest(route, DiscardingExchange(self.exchange), served, self._fields)

    def offer(self, samples: Samples) -> None:
        """Samples are sent again under /v2, where these calls do not exist."""

    def reject(self, error: IsochroneError) -> None:
        if isinstance(error, NotFound):
            error = ModelNotFound(f"The model '{self._fields.model[:200]}' does not exist: {error}")
        respond_error(self.exchange, error)

    def tokens_of(self, attempt: Attempt | None) -> int:
        if isinstance(attempt, UpstreamAttempt) and not attempt.streaming:
            usage = usage_in(b"".join(attempt.body)[-TAIL:])
            if usage:
                return usage
        return super().tokens_of(attempt)

    def pass_on(self, attempt: UpstreamAttempt, data: Buffer) -> None:
        self._is_between_events = bytes(data[-2:]) == b"\n\n"
        super().pass_on(attempt, data)

    def cut_off(self, error: IsochroneError) -> None:
        if not self._is_between_events:
            super().cut_off(error)
            return
        self.exchange.write([b"data: ", msgspec.json.encode(error_object(error)), b"\n\n"])
        self.exchange.end()
