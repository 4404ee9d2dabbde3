"""One serving process's part in its group: private socket, joining, heartbeat, readiness.

The worker's and the gateway's process call it at the steps of their start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import structlog

from isochrone.clock import now_ns
from isochrone.multiprocess.coordination.shared_service import SharedService, call_coordinator
from isochrone.multiprocess.group.board import JOINED, LISTENING, READY, STARTED
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.sharing import memory
from isochrone.protocol.services.service import InferenceService

log = structlog.get_logger(__name__)

_BEAT = 0.1
#: Seconds for the record's calls, which may load models.
_JOIN_SECONDS = 3600.0


class ProcessInGroup:
    """Process ``number``; ``generation`` counts its starts from 0."""

    def __init__(self, group: ProcessGroup, number: int, generation: int) -> None:
        self.group = group
        self.number = number
        self.private_socket = group.socket(number)
        #: A process that is started again must not get connections before it can serve; at the start of the server
        #: there is no other one, and callers see that it is live and not ready.
        self.listens_at_once = generation == 0
        self._is_ready: Callable[[], bool] = lambda: False
        self._beating: asyncio.Task[None] | None = None
        group.board.claim(number, os.getpid(), now_ns())

    def share(self, service: InferenceService) -> InferenceService:
        """The service for the public ports."""
        return SharedService(service, self.group, self.number)

    def all_ready(self) -> bool:
        """Whether each process of the group is ready, this one included."""
        return self.group.board.all_ready(now_ns())

    def start(self, is_ready: Callable[[], bool]) -> None:
        """Start the heartbeat. ``is_ready`` is of this process alone."""
        self._is_ready = is_ready
        if self.listens_at_once:
            self.group.board.mark(self.number, LISTENING)
        self._beating = asyncio.ensure_future(self._beat())

    async def join(self) -> None:
        """Return when every control call in force has been made in this process. Raises the error of one."""
        await call_coordinator(self.group, f"/join/{self.number}", seconds=_JOIN_SECONDS)

    def ready(self) -> None:
        """The start is over: this process accepts requests."""
        board = self.group.board
        board.mark(self.number, READY, on=self._is_ready())
        board.mark(self.number, LISTENING, STARTED)
        found = memory(os.getpid())
        if found is None:
            log.info("process ready", pid=os.getpid())
            return
        rss, pss, shared = (round(size / 1e6) for size in (found.rss, found.pss, found.shared))
        log.info("process ready", pid=os.getpid(), rss_mb=rss, pss_mb=pss, shared_mb=shared)

    def stopping(self) -> None:
        """This process drains: it gets no more control calls, and the server is not ready."""
        self.group.board.mark(self.number, READY, JOINED, LISTENING, on=False)

    async def stopped(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    async def _beat(self) -> None:
        board, number = self.group.board, self.number
        while True:
            board.beat(number, now_ns())
            board.mark(number, READY, on=self._is_ready())
            await asyncio.sleep(_BEAT)
