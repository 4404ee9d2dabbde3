"""The starlette application: the operations as routes, and every error as JSON with a message and a code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from isochrone.control.api.callers.guarding import Guard
from isochrone.control.api.callers.rights import Rights
from isochrone.control.api.callers.while_allowed import while_allowed
from isochrone.control.api.messages import ErrorAnswer
from isochrone.control.api.openapi import document
from isochrone.control.api.operation import Operation, answer
from isochrone.control.api.recording import actor_of, count_refusal, recorded
from isochrone.control.api.routes import OPERATIONS
from isochrone.control.api.service import ControlService
from isochrone.control.figures.history import History
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import NO_FIELDS
from isochrone.control.what_if.asking import Simulator
from isochrone.errors import Internal, IsochroneError
from isochrone.secure.audit.actor import TOKEN
from isochrone.secure.audit.audit import Audit
from isochrone.store.base import Store
from isochrone.store.mirror import Mirror

log = structlog.get_logger(__name__)

#: Where the Open Inference Protocol's paths begin.
_INFERENCE = "/v2"
#: Addresses in one answer.
_GATEWAYS_NAMED = 4


def create_app(
    store: Store,
    mirror: Mirror,
    keys: Keys,
    write_error: Callable[[], str] = str,
    *,
    names: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    rights: Rights | None = None,
    further_routes: Callable[[ControlService], Iterable[BaseRoute]] | None = None,
    further_middleware: Sequence[Middleware] = (),
    history: History | None = None,
    simulator: Simulator | None = None,
    audit: Audit | None = None,
    own_fields: Mapping[str, str] = NO_FIELDS,
) -> Starlette:
    """The API of one fleet. The mirror must be running; neither it nor the store is closed here.

    ``write_error``: why nothing can be written to the store, if that is known. ``names``: host names of the API, beside
    this machine's own. ``allowed_origins``: of pages that may use it from a browser. ``rights``: who may change the
    fleet; None: every client. ``further_routes``: what else is served at the same address, behind the same guard.
    ``further_middleware``: what requests pass after the guard, and before any route.
    ``history``: the figures of the fleet that this controller collects. ``simulator``: answers what-if questions.
    ``audit``: records changes before they take effect, and what is refused; None: nothing does. ``own_fields``: headers
    that prove to the fleet's processes that a controller asks.
    """
    service = ControlService(store, mirror, keys, write_error, history, simulator, rights, audit, own_fields)
    described = document(OPERATIONS)

    async def openapi(request: Request) -> Response:
        return answer(described)

    app = Starlette(
        routes=[
            Route("/v1/openapi.json", openapi, methods=["GET"]),
            *(Route(each.path, _endpoint(service, each), methods=[each.method]) for each in OPERATIONS),
            *(further_routes(service) if further_routes is not None else ()),
        ],
        middleware=[Middleware(Guard, names=names, allowed_origins=allowed_origins), *further_middleware],
        exception_handlers={IsochroneError: _refused, HTTPException: _no_such_route(service), Exception: _broken},
    )
    # ``serve_api`` sets it before it stops.
    app.state.stopping = service.stopping
    return app


def _endpoint(service: ControlService, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        await service.rights.decided(request.headers)
        proved = service.rights.name_of(request.headers)
        # The token of --token-file says that somebody may, and not who it is.
        request.state.proved = "" if proved == TOKEN else proved
        if operation.changes and service.audit is not None:
            return await recorded(service.audit, service, operation, request)
        try:
            service.rights.require(request.headers, operation.permission)
        except IsochroneError as error:
            count_refusal(service.audit, actor_of(request, service.rights), operation.permission, error)
            raise
        response = await operation.handler(service, request)
        if not operation.streams or not service.rights.needs_token:
            return response
        return _WhileAllowed(response, lambda: _may(service, request, operation))

    return endpoint


class _WhileAllowed(Response):
    """Another response, as long as its caller may have it."""

    def __init__(self, response: Response, is_allowed: Callable[[], bool]) -> None:
        super().__init__()
        self._response = response
        self._is_allowed = is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_allowed(self._response, scope, receive, send, self._is_allowed)


def _may(service: ControlService, request: Request, operation: Operation) -> bool:
    try:
        service.rights.require(request.headers, operation.permission)
    except IsochroneError:
        return False
    return True


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, IsochroneError)
    return answer(ErrorAnswer(error.message, error.code), error.http_status)


def _no_such_route(service: ControlService) -> Callable[[Request, Exception], Response]:
    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path[:200]
        if error.status_code == 405:
            error_answer = ErrorAnswer(f"{path}: {request.method} is not one of its methods", "method_not_allowed")
        elif error.status_code == 404:
            error_answer = ErrorAnswer(f"no such path: {path}; {_hint(service, path)}", "not_found")
        else:
            error_answer = ErrorAnswer(error.detail, "malformed")
        return Response(
            msgspec.json.encode(error_answer),
            status_code=error.status_code,
            headers=error.headers,
            media_type="application/json",
        )

    return refused


def _hint(service: ControlService, path: str) -> str:
    """What to ask instead. Callers who may have to prove something first learn no addresses."""
    if path != _INFERENCE and not path.startswith(f"{_INFERENCE}/"):
        return "/v1/openapi.json lists them"
    found = () if service.rights.needs_token else service.view().gateways.values()
    named = ", ".join(sorted(each.address for each in found)[:_GATEWAYS_NAMED])
    return f"this is a controller; send inference requests to a gateway{f' ({named})' if named else ''}"


def _broken(request: Request, error: Exception) -> Response:
    """An unexpected error: the log has the details, the answer does not."""
    log.error("control API failed", path=request.url.path, exc_info=error)
    return answer(ErrorAnswer(f"{type(error).__name__} in the controller; see its log", Internal.code), 500)
