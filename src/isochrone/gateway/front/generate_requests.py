"""The codec of generate and generate_stream: HTTP requests whose bodies may ask for deadlines of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.clock import NEVER
from isochrone.errors import IsochroneError
from isochrone.gateway.front.discarding_exchange import DiscardingExchange
from isochrone.gateway.front.http_requests import HttpRequest, HttpRoute
from isochrone.gateway.policies.base import TokenDeadlines
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.parameters import Parameters
from isochrone.gateway.traffic.prompts import GenerateFields, TokenTimes, generate_fields
from isochrone.protocol.rest.answers import respond_error
from isochrone.wire.exchange import Buffer, Exchange, Head

if TYPE_CHECKING:
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.gateway import Gateway


class GenerateRoute(HttpRoute):
    """Requests with one head."""

    #: What one request says, whose compressed body has been read; None: it has to be read.
    fields: GenerateFields | None = None

    def __init__(self, gateway: Gateway, head: Head, model: str, version: str, path: bytes, kind: Kind) -> None:
        super().__init__(gateway, head, model, version, path, kind)
        self.json_length = -1

    def handle(self, exchange: Exchange) -> None:
        try:
            fleet = self.gateway.fleet
            served = fleet.models.get(self.model) or fleet.model(self.model)
            request = GenerateRequest(self, exchange, served)
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error)
        else:
            self.gateway.arrive(request)

    def read(self, text: Buffer) -> HttpRoute:
        served = self.gateway.fleet.models.get(self.model)
        fields = generate_fields(text, served is not None and served.reads_prompts)
        route = self.opened(fields.parameters)
        assert isinstance(route, GenerateRoute)
        route.fields = fields
        return route

    def for_model(self, model: str) -> HttpRoute:
        route = super().for_model(model)
        if self.fields is not None:
            # Made for this request alone, as this one is.
            assert isinstance(route, GenerateRoute)
            route.fields = self.fields
        return route


class GenerateRequest(HttpRequest):
    """One request."""

    def __init__(self, route: GenerateRoute, exchange: Exchange, served: ServedModel) -> None:
        if route.parameters is None:
            self._fields = generate_fields(exchange.body, served.reads_prompts)
        else:
            self._fields = route.fields or GenerateFields(route.parameters)
        super().__init__(route, exchange, served)
        tokens = self._fields.tokens
        if tokens is not None:
            self.demand = self.demand.with_tokens(token_deadlines(tokens, self.arrived))

    def _glance(self, start: bytes | None) -> Parameters | None:
        return self._fields.parameters

    def read_prompt(self) -> bytes:
        return self._fields.prompt

    def copy(self, served: ServedModel) -> HttpRequest:
        route = self.route.for_model(served.name)
        assert isinstance(route, GenerateRoute)
        return GenerateRequest(route, DiscardingExchange(self.exchange), served)


def token_deadlines(times: TokenTimes, arrived: int) -> TokenDeadlines:
    """What a request asks for, as instants."""
    return TokenDeadlines(arrived + times.first_ns if times.first_ns else NEVER, times.between_ns)
