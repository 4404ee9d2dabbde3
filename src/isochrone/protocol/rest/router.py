"""REST routing: paths to routes.

``route`` is called once per distinct request head. The route that it returns holds everything that depends on the head
alone (model, version, encodings, deadline header), so that the work for a repeated head starts with the body.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from isochrone.errors import InvalidArgument, IsochroneError, MethodNotAllowed, NotFound
from isochrone.protocol.access import control_token
from isochrone.protocol.access.changes import Change, of_body, rest_change
from isochrone.protocol.access.fencing import term_of
from isochrone.protocol.audited_calls import actor_of, audited
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.protocol.rest.control import CHANGES, CONTROL_PATHS, Action, Call, ControlRoute, FencedRoute
from isochrone.protocol.rest.generate import GenerateRoute
from isochrone.protocol.rest.headers import inflating
from isochrone.protocol.rest.infer import InferRoute
from isochrone.protocol.rest.plan_memo import PlanMemo
from isochrone.wire.exchange import Head, Route

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService
    from isochrone.secure.audit.audit import Audit

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_INFER = re.compile(_MODEL + r"/(?P<verb>infer|generate|generate_stream)/?$")


class RestRouter:
    """Finds the route of a head."""

    def __init__(self, service: InferenceService, max_body_bytes: int, audit: Audit | None = None) -> None:
        """``audit`` records changes before they take effect; None: nothing does."""
        self.service = service
        self._audit = audit
        self.max_body_bytes = max_body_bytes
        self._plans = PlanMemo()

    def route(self, head: Head) -> Route:
        try:
            return inflating(self._find(head), head, self.max_body_bytes)
        except IsochroneError as error:
            return ErrorRoute(error)

    def _find(self, head: Head) -> Route:
        path = head.target.partition(b"?")[0]
        try:
            text = path.decode("ascii")
        except UnicodeDecodeError:
            raise NotFound(f"no such path: {path[:200]!r}; percent-encode what is not ASCII") from None
        match = _INFER.match(text)
        if match is not None:
            if head.method != b"POST":
                raise MethodNotAllowed(f"{match['verb']}: expected POST, given {_shown(head.method)}")
            model, version = _unquote(match["model"]), _unquote(match["version"] or "")
            if match["verb"] == "infer":
                return InferRoute(self.service, self._plans, head, model, version)
            return GenerateRoute(self.service, head, model, version, streaming=match["verb"] == "generate_stream")
        for pattern, methods in CONTROL_PATHS:
            found = pattern.match(text)
            if found is None:
                continue
            action = methods.get(head.method) or (methods.get(b"GET") if head.method == b"HEAD" else None)
            if action is None:
                allowed = ", ".join(name.decode() for name in methods)
                raise MethodNotAllowed(f"{text}: expected {allowed}, given {_shown(head.method)}")
            changes = head.method == b"POST" and action in CHANGES
            is_refused = changes and not control_token.may_change(head, self.service.control_token)
            if self._audit is not None and (change := rest_change(head.method, path)) is not None:
                record = refused_action if is_refused else audited_action
                action = record(self._audit, head, change, action)
            elif is_refused:
                raise control_token.refused()
            arguments = {key: _unquote(value or "") for key, value in found.groupdict().items()}
            route = ControlRoute(self.service, head, action, arguments)
            term = term_of(head) if changes else None
            return route if term is None else FencedRoute(route, self.service.fence, term)
        raise NotFound(f"no such path: {text[:200]}; this server speaks the Open Inference Protocol under /v2")


def refused_action(audit: Audit, head: Head, change: Change, _: Action) -> Action:
    """Records that the caller may not."""

    def run(call: Call) -> Any:
        error = control_token.refused()
        audit.refused(actor_of(head, call.exchange), change.action, change.subject, {"error": error.code})
        raise error

    return run


def audited_action(audit: Audit, head: Head, change: Change, action: Action) -> Action:
    """The action between its records."""

    def run(call: Call) -> Any:
        actor = actor_of(head, call.exchange, call.service.control_token)
        return audited(audit, actor, change, of_body(change.action, call.body), lambda: action(call))

    return run


def _unquote(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the path's '{text[:100]}' is not valid UTF-8 when unquoted") from None


def _shown(method: bytes) -> str:
    return method.decode("latin-1")[:20]
