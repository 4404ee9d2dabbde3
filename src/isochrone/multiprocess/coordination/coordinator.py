"""The coordinator process: the metrics page of all processes, and their control calls. Serves no model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import now_ns
from isochrone.errors import InvalidArgument, IsochroneError, NotFound
from isochrone.multiprocess.coordination.control_calls import ControlCalls
from isochrone.multiprocess.coordination.control_record import change_of
from isochrone.multiprocess.group.board import COORDINATOR, STARTED
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.metrics.flight_pages import GroupFlights
from isochrone.multiprocess.metrics.metrics_page import GroupMetricsApplication, GroupPages
from isochrone.protocol.access.needs import needed_by_page
from isochrone.protocol.applications.application import SameOrigin
from isochrone.protocol.applications.authenticated import Authenticated
from isochrone.protocol.rest.answers import ErrorRoute, respond_error, respond_unexpected
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Application, Exchange, Head, Route
from isochrone.wire.listening.listeners import Listeners

log = structlog.get_logger(__name__)

_JOIN = re.compile(r"/join/([0-9]{1,4})")
#: Seconds for calls in progress when the coordinator stops; the processes have ended already.
_GRACE = 2.0
_BEAT = 0.1


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    host: str
    #: None: no metrics page.
    metrics_port: int | None
    allow_origins: tuple[str, ...] = ()
    limits: WireLimits = field(default_factory=WireLimits)
    #: The access file; None: every caller may read the page.
    access: Path | None = None
    #: Of the metrics port, whose listener follows its files; None: plain.
    tls: ssl.SSLContext | None = None


async def coordinate(group: ProcessGroup, settings: CoordinatorSettings) -> int:
    """Run until SIGTERM, which the supervisor sends when all processes have ended."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    group.board.claim(COORDINATOR, os.getpid(), now_ns())
    tasks = BackgroundTasks()
    tasks.start(_beat(group))
    listeners = Listeners(settings.limits)
    if settings.metrics_port is not None:
        page: Application = GroupFlights(group, GroupMetricsApplication(GroupPages(group)))
        if settings.access is not None:
            keeper = AccessKeeper(settings.access)
            await keeper.start()
            page = Authenticated(page, keeper, settings.limits.max_body_bytes, needed_by_page)
        await listeners.add(SameOrigin(page, settings.allow_origins), settings.tls).start(
            settings.host, settings.metrics_port, reuse_port=True
        )
    calls = ControlCalls(group)
    await calls.recover()
    private = Listeners(settings.limits.between_processes())
    await private.add(CoordinatorApplication(calls), None).start_unix(group.coordinator_socket)
    group.board.mark(COORDINATOR, STARTED)
    try:
        await stop.wait()
    finally:
        await asyncio.gather(listeners.stop(_GRACE), private.stop(_GRACE))
        await tasks.end()
        if os.getppid() != group.supervisor:
            # The supervisor was killed: nobody else removes the directory.
            group.remove()
    return 0


async def _beat(group: ProcessGroup) -> None:
    while True:
        group.board.beat(COORDINATOR, now_ns())
        await asyncio.sleep(_BEAT)


class CoordinatorApplication:
    """On the private socket: control calls in their REST form, and ``POST /join/N`` of a process that has started."""

    def __init__(self, calls: ControlCalls) -> None:
        self._calls = calls
        self._tasks = BackgroundTasks()

    def route(self, head: Head) -> Route:
        target = head.target.decode("latin-1")
        if head.method == b"POST" and (change_of(target, {}) is not None or _JOIN.fullmatch(target)):
            return _CallRoute(self._calls, self._tasks, target)
        return ErrorRoute(NotFound(f"no control call: {target[:200]}"))


class _CallRoute(Route):
    def __init__(self, calls: ControlCalls, tasks: BackgroundTasks, target: str) -> None:
        self._calls = calls
        self._tasks = tasks
        self._target = target

    def handle(self, exchange: Exchange) -> None:
        self._tasks.start(self._answer(exchange, bytes(exchange.body)))

    async def _answer(self, exchange: Exchange, body: bytes) -> None:
        try:
            join = _JOIN.fullmatch(self._target)
            if join is not None:
                await self._calls.join(int(join[1]))
                exchange.respond(200, (), [])
                return
            change = change_of(self._target, _object(body))
            assert change is not None
            answer = await self._calls.change(change)
            kind = answer.get(b"content-type")
            exchange.respond(200, ((b"content-type", kind),) if kind else (), [answer.body] if answer.body else [])
        except IsochroneError as error:
            respond_error(exchange, error, with_code=True)
        except Exception as error:
            respond_unexpected(exchange, error)


def _object(body: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(body) if body else {}
    if not isinstance(value, dict):
        raise InvalidArgument("a control call: expected a JSON object")
    return value
