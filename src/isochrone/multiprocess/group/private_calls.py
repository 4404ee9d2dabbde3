"""Calls between the processes of one server: HTTP over Unix-domain sockets, one connection per call.

Control calls are rare, and a fresh connection cannot be stale. Never retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from isochrone import errors
from isochrone.errors import Internal, IsochroneError, Unavailable
from isochrone.protocol.rest.answers import ERROR_CODE
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.connect import connect_http1_unix
from isochrone.wire.exchange import Headers
from isochrone.wire.receiver import Response

_T = TypeVar("_T")
#: Largest answer: a metrics page, statistics.
_LIMITS = WireLimits(max_body_bytes=64 << 20)
_HOST = (b"host", b"localhost")


class NotReached(Unavailable):
    """The process does not run or does not accept: it has not seen the call."""


async def call(
    socket: str, method: str, target: str, body: bytes = b"", *, seconds: float, headers: Headers = ()
) -> Response:
    """Raises ``NotReached``, ``ConnectionLost`` or ``DeadlineExceeded``."""
    try:
        connection = await connect_http1_unix(socket, limits=_LIMITS, timeout=seconds)
    except Unavailable as error:
        raise NotReached(str(error)) from None
    try:
        return await connection.request(
            method.encode(), target.encode(), (_HOST, *headers), (body,) if body else (), seconds
        )
    finally:
        connection.close()


async def call_json(socket: str, method: str, target: str, value: Any = None, *, seconds: float) -> Any:
    """The decoded answer; an error answer is raised as the error that it was."""
    body = b"" if value is None else msgspec.json.encode(value)
    answer = await call(socket, method, target, body, seconds=seconds)
    raise_error(answer)
    return msgspec.json.decode(answer.body) if len(answer.body) else None


def raise_error(answer: Response) -> None:
    """Raise the error of an answer, if it is one."""
    if answer.status < 400:
        return
    code = (answer.get(ERROR_CODE) or b"").decode("latin-1")
    raise _error(code, answer.status, error_text(answer))


def error_text(answer: Response) -> str:
    try:
        return str(msgspec.json.decode(answer.body)["error"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return bytes(answer.body[:500]).decode("utf-8", "replace") or f"status {answer.status}"


def _error(code: str, status: int, text: str) -> IsochroneError:
    kinds = {kind.code: kind for kind in _kinds(IsochroneError)}
    by_status = {kind.http_status: kind for kind in reversed(list(kinds.values()))}
    kind = kinds.get(code) or by_status.get(status, Internal)
    error = kind.__new__(kind)
    error.args = (text,)
    return error


def _kinds(kind: type[IsochroneError]) -> list[type[IsochroneError]]:
    """The errors of ``errors``; subclasses elsewhere are for their own packages."""
    found = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [*found, *(each for parent in found for each in _kinds(parent))]


async def gather(calls: Mapping[int, Awaitable[_T]]) -> dict[int, _T | IsochroneError]:
    """The result or the error of each process, by its number."""
    results: Sequence[_T | BaseException] = await asyncio.gather(*calls.values(), return_exceptions=True)
    found: dict[int, _T | IsochroneError] = {}
    for number, result in zip(calls, results, strict=True):
        if isinstance(result, BaseException) and not isinstance(result, IsochroneError):
            raise result
        found[number] = result
    return found
