"""The coordinator's metrics page: asks every process for its page, and adds them up.

A process that does not answer in time, or is being restarted, is represented by its last page. The counts of a process
that ended are kept in a file, since they belong to the sum for as long as the server runs.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, Unavailable
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.private_calls import call, gather, raise_error
from isochrone.multiprocess.group.sharing import memory
from isochrone.multiprocess.metrics.group_metrics import GroupCollector
from isochrone.multiprocess.metrics.page_sum import (
    Counts,
    Page,
    add_up,
    as_open_metrics,
    parse,
    render,
    retire,
    settle,
    without_ended,
)
from isochrone.observe.metrics.page_formats import PLAIN_WITH_EXEMPLARS, encoder
from isochrone.protocol.applications.application import error_unless_metrics
from isochrone.protocol.rest.answers import respond_error, respond_unexpected
from isochrone.wire.exchange import Exchange, Head, Route

log = structlog.get_logger(__name__)

#: Seconds a process gets for its page: half of what Prometheus gives a scrape, and more than a busy machine's stalls.
_PAGE_SECONDS = 5.0
_ACCEPT = ((b"accept", PLAIN_WITH_EXEMPLARS.encode()),)


class GroupPages:
    """The pages of all processes."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._retired = _read_counts(group.retired_file)
        #: Process → its pid and its last page.
        self._last: dict[int, tuple[int, Page]] = {}
        self._turn = asyncio.Lock()

    async def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) in the format of the Accept header."""
        encode, content_type = encoder(accept)
        board = self._group.board
        async with self._turn:
            await self._ask()
            pages = {number: page for number, (_, page) in sorted(self._last.items())}
        if not pages:
            raise Unavailable("no process has a metrics page yet")
        memories = {number: found for number in board.numbers if (found := memory(board.pid(number) or -1))}
        restarts = {number: board.restarts(number) for number in board.numbers}
        own = encode(GroupCollector(board.count, len(board.ready(now_ns())), restarts, memories)).decode()
        total = add_up(pages, self._retired)
        if content_type.startswith("application/openmetrics-text"):
            total = as_open_metrics(total)
        more = [line for line in own.splitlines() if line != "# EOF"]
        return render(total, more).encode(), content_type

    async def _ask(self) -> None:
        """For plain text, whatever the scraper wants: a page that is kept must add up with one of another scrape."""
        board = self._group.board
        pids = {number: board.pid(number) for number in board.numbers}
        for number, (pid, page) in list(self._last.items()):
            if pids[number] not in (0, pid):
                # Another process has its number: what the earlier one counted is final.
                del self._last[number]
                self._retired = retire(page, self._retired)
                _write_counts(self._group.retired_file, self._retired)
        answers = await gather(
            {
                number: call(self._group.socket(number), "GET", "/metrics", seconds=_PAGE_SECONDS, headers=_ACCEPT)
                for number, pid in pids.items()
                if pid
            }
        )
        kept = self._retired
        for number, answer in answers.items():
            if isinstance(answer, IsochroneError):
                continue
            raise_error(answer)
            if board.pid(number) == pids[number]:
                # Otherwise another one may have answered, whose counts would be retired as the earlier one's.
                page = parse(bytes(answer.body).decode())
                if number in self._last:
                    self._retired = settle(self._last[number][1], page, self._retired)
                self._last[number] = pids[number], page
        self._retired = without_ended((page for _, page in self._last.values()), self._retired)
        if self._retired != kept:
            _write_counts(self._group.retired_file, self._retired)


def _read_counts(path: Path) -> Counts:
    if not path.exists():
        return {}
    rows = msgspec.json.decode(path.read_bytes(), type=list[tuple[str, str, float]])
    return {(name, labels): value for name, labels, value in rows}


def _write_counts(path: Path, counts: Counts) -> None:
    rows = [(name, labels, value) for (name, labels), value in counts.items()]
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(rows))
    os.replace(new, path)


class GroupMetricsApplication:
    """GET /metrics, for Prometheus."""

    def __init__(self, pages: GroupPages) -> None:
        self._pages = pages
        self._tasks = BackgroundTasks()

    def route(self, head: Head) -> Route:
        error = error_unless_metrics(head)
        if error is not None:
            return error
        return _PageRoute(self._pages, self._tasks, (head.get(b"accept") or b"").decode("latin-1"))


class _PageRoute(Route):
    def __init__(self, pages: GroupPages, tasks: BackgroundTasks, accept: str) -> None:
        self._pages = pages
        self._tasks = tasks
        self._accept = accept

    def handle(self, exchange: Exchange) -> None:
        self._tasks.start(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            body, content_type = await self._pages.render(self._accept)
        except IsochroneError as error:
            respond_error(exchange, error)
        except Exception as error:
            respond_unexpected(exchange, error)
        else:
            exchange.respond(200, ((b"content-type", content_type.encode()),), [body])
