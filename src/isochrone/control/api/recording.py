"""Operations between their records in the audit log: who asked for which change of the fleet, and what became of it.

The attempt is on the disk before a handler runs. Where it cannot be written, the operation is answered with 503. A
caller without the right to change the fleet is refused in any case. Operations that only read leave a record where
they are refused, one for many of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from isochrone.control.api.operation import Operation, content_of
from isochrone.errors import IsochroneError, PermissionDenied, Unauthenticated
from isochrone.secure.audit.actor import TOKEN, Actor, anonymous

if TYPE_CHECKING:
    from isochrone.control.api.callers.rights import Rights
    from isochrone.control.api.service import ControlService
    from isochrone.secure.audit.audit import Audit

#: Members of a body that are recorded as their digest: a whole file, which may have secrets.
_DIGESTED: Final = ("text",)
#: Bytes of a member's JSON, above which it is recorded as its digest too.
_MOST_BYTES: Final = 1000
#: Of the body, under the name by which redaction knows it.
_RENAMED: Final = {"by": "user"}


def actor_of(request: HTTPConnection, rights: Rights, credential: Mapping[str, str] | None = None) -> Actor:
    """Who asks a controller. ``credential``: the headers that prove it; None: those of the request."""
    address = request.client.host if request.client is not None else ""
    name = rights.name_of(request.headers if credential is None else credential)
    return Actor(name, TOKEN if name == TOKEN else name.partition(":")[0], address) if name else anonymous(address)


def count_refusal(audit: Audit | None, actor: Actor, permission: str, error: IsochroneError) -> None:
    """Count a request that changes nothing, and is refused for lack of a right: see ``secure.audit.refusals``."""
    if audit is not None and isinstance(error, PermissionDenied | Unauthenticated):
        audit.refused_access(actor, permission, error.code)


async def recorded(audit: Audit, service: ControlService, operation: Operation, request: Request) -> Response:
    """The answer of an operation that changes the fleet."""
    actor = actor_of(request, service.rights)
    subject = next(iter(request.path_params.values()), "")
    details: dict[str, Any] = {"user": request.headers.get("x-isochrone-user", "").strip(), "path": request.url.path}
    try:
        service.rights.require(request.headers, operation.permission)
    except (PermissionDenied, Unauthenticated) as error:
        audit.refused(actor, operation.action, subject, details | {"error": error.code})
        raise
    if request.query_params:
        details["query"] = str(request.query_params)
    if operation.body is not None:
        details |= _members(await content_of(request))
    attempt = await audit.begin(actor, operation.action, subject, details)
    try:
        response = await operation.handler(service, request)
    except BaseException as error:
        await attempt.ended(error)
        raise
    await attempt.ended(status=response.status_code, **_identity(response))
    return response


def _members(content: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(content or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"body_sha256": hashlib.sha256(content).hexdigest()}
    if not isinstance(body, dict):
        return {}
    return dict(_member(str(name)[:40], value) for name, value in [*body.items()][:32])


def _member(name: str, value: Any) -> tuple[str, Any]:
    encoded = msgspec.json.encode(value)
    if name in _DIGESTED or len(encoded) > _MOST_BYTES:
        return f"{name}_sha256", hashlib.sha256(encoded).hexdigest()
    return _RENAMED.get(name, name), value


def _identity(response: Response) -> dict[str, Any]:
    """The id of a rollout that was started or changed, or the generation of an applied file."""
    try:
        answer = msgspec.json.decode(bytes(response.body))
    except (msgspec.DecodeError, AttributeError):
        return {}
    return {name: answer[name] for name in ("id", "generation") if isinstance(answer, dict) and name in answer}
