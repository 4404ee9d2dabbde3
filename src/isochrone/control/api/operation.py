"""One operation of the API: its path, its types and its handler; and what handlers read from a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from isochrone.control.api.messages import in_full
from isochrone.control.api.service import ControlService
from isochrone.errors import Cancelled, InvalidArgument, MalformedRequest, PayloadTooLarge
from isochrone.secure.access.permissions import FLEET_ADMIN, FLEET_CHANGE
from isochrone.secure.loopback import is_loopback

Result = TypeVar("Result")
Body = TypeVar("Body", bound=msgspec.Struct)
Handler = Callable[[ControlService, Request], Awaitable[Response]]

#: Largest body of a request, in bytes. A fleet.yaml of a thousand models has a tenth of it.
_MAX_BODY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    #: With ``{name}`` for its parameters.
    path: str
    summary: str
    handler: Handler
    answer: Any
    body: type[msgspec.Struct] | None = None
    #: By name of a query parameter: its JSON type and its description.
    query: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: Whether it can answer as server-sent events: always, or with ``follow=1``.
    streams: bool = False
    status: int = 200
    #: What its caller needs (``secure.access.permissions``).
    permission: str = FLEET_CHANGE
    #: What the audit log calls it.
    action: str = ""

    @property
    def changes(self) -> bool:
        """Whether it may change the fleet."""
        return self.permission in (FLEET_CHANGE, FLEET_ADMIN)


def answer(record: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(in_full(record)), status_code=status, media_type="application/json")


def is_local(request: Request) -> bool:
    """Whether the caller, or the proxy that it uses, is on this machine."""
    return request.client is not None and is_loopback(request.client.host)


def who_asks(request: Request, named: str = "") -> str:
    """The requester for events and records. A caller that has proved who it is can add to that, and not replace it."""
    claimed = (named.strip() or request.headers.get("x-isochrone-user", "").strip())[:200]
    proved: str = getattr(request.state, "proved", "")
    if proved and claimed != proved and not claimed.startswith(f"{proved} "):
        return f"{proved} ({claimed})"[:200] if claimed else proved
    return claimed or "unknown"


async def content_of(request: Request) -> bytes:
    """The bytes of the body. They are read once, and kept with the request."""
    known: bytes | None = getattr(request.state, "content", None)
    if known is not None:
        return known
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MAX_BODY:
            raise PayloadTooLarge(f"the body is over {_MAX_BODY} bytes")
    request.state.content = bytes(content)
    return bytes(content)


async def body_of(request: Request, kind: type[Body]) -> Body:
    """The request's body; an empty body counts as an empty object."""
    content = await content_of(request)
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the request's body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"the request's body is not JSON: {error}") from None


async def while_asked(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What ``work`` returns. It is cancelled when the caller has gone: nothing else tells a handler so. The request's
    body must have been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the caller has gone")
        return working.result()
    finally:
        for each in (working, leaving):
            each.cancel()
        # What is cancelled ends its processes before the handler returns.
        await asyncio.wait((working, leaving))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "0").lower()
    if value not in ("0", "1", "false", "true", ""):
        raise InvalidArgument(f"{name}: expected 0 or 1, given {value!r}")
    return value in ("1", "true")


def count(request: Request, name: str, default: int, largest: int) -> int:
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= largest):
        raise InvalidArgument(f"{name}: expected a number from 0 to {largest}, given {value[:40]!r}")
    return int(value)


def share(request: Request, name: str, default: float, largest: float) -> float:
    """A share above 0, up to ``largest``."""
    value = request.query_params.get(name)
    if value is None:
        return default
    try:
        given = float(value)
    except ValueError:
        given = 0.0
    if not 0.0 < given <= largest:
        raise InvalidArgument(f"{name}: expected a share above 0, up to {largest:g}, given {value[:40]!r}")
    return given
