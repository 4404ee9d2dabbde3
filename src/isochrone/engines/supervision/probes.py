"""HTTP probes of a process: whether it answers, which models it serves, how many requests it has in flight.

The supervisor probes starting and stopping processes a few times a second. Never on the path of a request. ``tls``:
whether the process has TLS; ``credential``: a value of ``Authorization`` for a process that checks its callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import quote

import msgspec

from isochrone.errors import MalformedRequest
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, reported_in_flight
from isochrone.wire.tls.process_tls import process_tls

_SECONDS = 1.0


async def answers(host: str, port: int) -> bool:
    """Whether a process listens there."""
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(_reachable(host), port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def lives(host: str, port: int, tls: bool = False) -> bool:
    """Whether a process answers on its port. The kernel accepts connections for a process that hangs, too."""
    return bool(await _head(host, port, tls, "/v2/health/live"))


async def in_flight(host: str, port: int, tls: bool = False, credential: bytes = b"") -> int | None:
    """Requests that a worker has not answered yet; None: it does not report them."""
    try:
        return _read(await _head(host, port, tls, "/v2/health/live", credential))
    except MalformedRequest:
        return None


async def serves(host: str, port: int, model: str, tls: bool = False, credential: bytes = b"") -> bool:
    """Whether a gateway or worker would answer a request for a model now."""
    head = await _head(host, port, tls, f"/v2/models/{quote(model, safe='')}/ready", credential)
    status_line = head.partition(b"\r\n")[0]
    return status_line.split(b" ")[1:2] == [b"200"]


async def serves_all(host: str, port: int, models: Iterable[str], tls: bool = False, credential: bytes = b"") -> bool:
    """Whether it would answer requests for all these models. The first one that it would not ends the probe."""
    for model in models:
        if not await serves(host, port, model, tls, credential):
            return False
    return True


async def served(host: str, port: int, tls: bool = False, credential: bytes = b"") -> dict[tuple[str, str], str] | None:
    """Digests of the ready versions of a worker, by model and version; None: it does not report them."""
    answer = await _exchange(host, port, tls, b"POST", "/v2/repository/index", credential, whole=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.split(b" ")[1:2] != [b"200"]:
        return None
    try:
        rows = msgspec.json.decode(body, type=list[_Row])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return {(row.name, row.version): row.digest.removeprefix("sha256:") for row in rows if row.state == "READY"}


class _Row(msgspec.Struct):
    name: str
    version: str = ""
    state: str = ""
    digest: str = ""


async def _head(host: str, port: int, tls: bool, path: str, credential: bytes = b"") -> bytes:
    """The head of the answer to a GET; empty: no answer."""
    return await _exchange(host, port, tls, b"GET", path, credential)


async def _exchange(
    host: str, port: int, tls: bool, method: bytes, path: str, credential: bytes, *, whole: bool = False
) -> bytes:
    """The head of an answer, or the whole answer; empty: no answer."""
    proof = b"authorization: %b\r\n" % credential if credential else b""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await _connect(_reachable(host), port, tls)
            try:
                writer.write(
                    b"%b %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\ncontent-length: 0\r\n%b: text\r\n%b\r\n"
                    % (method, path.encode(), host.encode(), ORCA_FORMAT_HEADER, proof)
                )
                return await (reader.read() if whole else reader.readuntil(b"\r\n\r\n"))
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        return b""


async def _connect(host: str, port: int, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    present = process_tls()
    if not tls:
        return await asyncio.open_connection(host, port)
    if present.client is None or present.context is None:
        raise OSError("the fleet's certificates cannot be read")
    return await asyncio.open_connection(
        host, port, ssl=present.context, server_hostname=present.client.server_name or host
    )


def _read(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == ORCA_HEADER:
            return reported_in_flight(value)
    return None


def _reachable(host: str) -> str:
    """The address to connect to, for an address to listen on."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
