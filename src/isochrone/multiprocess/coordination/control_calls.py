"""Makes control calls in every process, in one order, and keeps the record of those in force.

One call at a time. The record is written before a call is begun and before it is answered. A process that is silent
during a call is ended: it could apply the call later, when the others have taken it back. It starts again and gets the
record.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConnectionLost, DeadlineExceeded, IsochroneError, Unavailable
from isochrone.multiprocess.coordination.control_outcome import failure, names
from isochrone.multiprocess.coordination.control_record import Change, Record
from isochrone.multiprocess.group.board import JOINED, SILENT_NS
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.liveness import Liveness, activity
from isochrone.multiprocess.group.private_calls import NotReached, call, call_json, gather, raise_error
from isochrone.wire.receiver import Response

log = structlog.get_logger(__name__)

#: Seconds between looks at the heartbeat of a process during a call.
_LOOK = 0.2
#: Seconds for calls that only read.
_READ_SECONDS = 5.0
#: Seconds for a call that changes a process; its ``liveness`` limits it much earlier.
_CHANGE_SECONDS = 3600.0


class ControlCalls:
    """The coordinator's part in control calls."""

    def __init__(
        self, group: ProcessGroup, silent_ns: int = SILENT_NS, kill: Callable[[int, int], None] = os.kill
    ) -> None:
        self._group = group
        self._board = group.board
        self._silent_ns = silent_ns
        self._kill = kill
        self._order = asyncio.Lock()
        self._record = read_record(group.record_file)

    async def recover(self) -> None:
        """Undo the call that an earlier coordinator had begun."""
        async with self._order:
            pending = self._record.pending
            if pending is None:
                return
            log.warning("a control call was interrupted", call=pending.change.target)
            joined = self._board.those(JOINED)
            known = {number: models for number, models in pending.before.items() if number in joined}
            undone = await self._undo(pending.change, known, again=True)
            self._write(self._record.ended())
            if left := sorted({*known} - {*undone}):
                log.error(
                    "it cannot be undone: it may be in force in some processes until it is repeated with success",
                    call=pending.change.target,
                    processes=left,
                )
            else:
                log.info("it is the same in all processes again", call=pending.change.target)

    async def join(self, number: int) -> None:
        """Bring a process that has started to the record; from then on it gets every call.

        A call that it answers with an error does not keep it from joining: the server would not be ready again.
        """
        async with self._order:
            socket = self._group.socket(number)
            registered: dict[str, list[str]] = {"system": [], "cuda": []}
            for kind, known in (("system", self._record.regions), ("cuda", self._record.cuda_regions)):
                if known:
                    status = await call_json(socket, "GET", f"/v2/{kind}sharedmemory/status", seconds=_READ_SECONDS)
                    registered[kind] = [region["name"] for region in status]
            ready = await self._ready_models(number)
            for change in self._record.replay(ready, registered["system"], registered["cuda"]):
                # Raises if the process is lost.
                answer = await self._apply(number, change)
                try:
                    raise_error(answer)
                except IsochroneError as error:
                    await self._join_without(number, change, error)
            self._board.mark(number, JOINED)

    async def _join_without(self, number: int, change: Change, error: IsochroneError) -> None:
        """A call of the record failed in a process that joins."""
        if change.kind in ("register", "register_cuda"):
            # The usual reason: its owner has ended, and removed it.
            log.warning("a region cannot be opened again and is dropped", region=change.name, error=str(error))
            gone = Change(f"un{change.kind}", change.name, {})
            self._write(self._record.applied(gone))
            for other, answer in (await gather({n: self._apply(n, gone) for n in self._board.those(JOINED)})).items():
                if isinstance(answer, IsochroneError) or answer.status >= 400:
                    log.error("a region could not be dropped", process=other, region=change.name)
            return
        log.error(
            "a control call in force fails in a new process", process=number, call=change.target, error=str(error)
        )
        if change.kind == "load" and change.name in await self._ready_models(number):
            # As it was at the start, with other parameters: another model than in the other processes. The second
            # attempt leaves the reason in the index.
            await self._apply(number, Change("unload", change.name, {}))
            await self._apply(number, change)

    async def change(self, change: Change) -> Response:
        """Make a call in every process that has joined; the answer of the first. Raises the error of the call."""
        async with self._order:
            joined = self._board.those(JOINED)
            if not joined:
                raise Unavailable("the server is starting").not_begun()
            silent = [number for number in joined if self._board.silence(number, now_ns()) > self._silent_ns]
            if silent:
                raise Unavailable(f"{names(silent)} of {self._group.count} does not respond; nothing was changed")
            before = await self._models(joined) if change.changes_models else dict.fromkeys(joined, frozenset[str]())
            self._write(self._record.begun(change, before))
            results = await gather({number: self._checked(number, change) for number in joined})
            failed = {number: each for number, each in results.items() if isinstance(each, IsochroneError)}
            for number, error in list(failed.items()):
                # It ended before it saw the call, and gets the record when it starts again.
                if isinstance(error, NotReached) and len(failed) < len(joined):
                    del failed[number]
            applied = {number: each for number, each in results.items() if not isinstance(each, IsochroneError)}
            if failed:
                undone = await self._undo(change, {number: before[number] for number in applied if number in before})
                self._write(self._record.ended())
                differing = [number for number in applied if number not in undone]
                raise failure(failed, undone, differing, self._group.count)
            changed = {number: before[number] for number in applied if number in before}
            models = await self._model_changes(change, changed) if change.changes_models else ((), ())
            self._write(self._record.applied(change, *models))
            return applied[min(applied)]

    async def _model_changes(
        self, change: Change, before: Mapping[int, frozenset[str]]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The models that were ready before a change and those after it, the same in every process.

        An unload with dependents keeps models that were loaded by name, and a process that was started again has had
        all of them loaded by name: what the call unloaded in another process goes there, too.
        """
        after = await self._models(before)
        if not after:
            return frozenset(), frozenset()
        gone = frozenset[str]().union(*(before[number] - models for number, models in after.items()))
        for number, models in after.items():
            for name in sorted(models & gone) if change.kind == "unload" else ():
                try:
                    raise_error(await self._apply(number, Change("unload", name, {})))
                except IsochroneError as error:
                    log.error("a dependent could not be unloaded", process=number, model=name, error=str(error))
        first = min(after)
        return before[first], after[first] - gone

    async def _undo(self, change: Change, before: Mapping[int, Collection[str]], *, again: bool = False) -> list[int]:
        """The processes in which a change was taken back.

        ``again``: it is unknown which of them have it, so a load that cannot be taken back is made in all of them.
        """
        undone = []
        for number, models in before.items():
            reverse = self._record.undo(change, models)
            if reverse is None and again and change.kind == "load":
                reverse = [change]
            if reverse is None and change.kind != "unload":
                continue
            try:
                for each in reverse or ():
                    raise_error(await self._apply(number, each))
                if change.changes_models:
                    for each in self._record.restore(models, await self._ready_models(number)):
                        raise_error(await self._apply(number, each))
                undone.append(number)
            except IsochroneError as error:
                log.error("a control call could not be undone", process=number, call=change.target, error=str(error))
        return undone

    async def _checked(self, number: int, change: Change) -> Response:
        answer = await self._apply(number, change)
        raise_error(answer)
        return answer

    async def _apply(self, number: int, change: Change) -> Response:
        """Make a call in one process, for as long as it gets on."""
        pid = self._board.pid(number)
        body = msgspec.json.encode(change.value)
        socket = self._group.socket(number)
        calling = asyncio.ensure_future(call(socket, "POST", change.target, body, seconds=_CHANGE_SECONDS))
        liveness = Liveness(self._silent_ns, int(_LOOK * SECOND))
        try:
            while True:
                done, _ = await asyncio.wait((calling,), timeout=_LOOK)
                if done:
                    return await calling
                now = now_ns()
                silence = self._board.silence(number, now)
                if self._board.pid(number) == pid and liveness.is_silent(silence, activity(pid), now):
                    log.error("a process does not respond to a control call and is ended", process=number, pid=pid)
                    self._end(number, pid)
                    raise DeadlineExceeded(
                        f"no heartbeat for {silence / SECOND:.0f} s during the call; the process is started again"
                    )
        except NotReached:
            raise
        except ConnectionLost:
            raise Unavailable("the process ended during the call") from None
        finally:
            calling.cancel()

    def _end(self, number: int, pid: int) -> None:
        self._board.mark(number, JOINED, on=False)
        try:
            self._kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def _models(self, numbers: Collection[int]) -> dict[int, frozenset[str]]:
        """The models that are ready in each process; of those that answer."""
        found = await gather({number: self._ready_models(number) for number in numbers})
        return {number: each for number, each in found.items() if not isinstance(each, IsochroneError)}

    async def _ready_models(self, number: int) -> frozenset[str]:
        socket = self._group.socket(number)
        rows = await call_json(socket, "POST", "/v2/repository/index", {"ready": True}, seconds=_READ_SECONDS)
        return frozenset(row["name"] for row in rows)

    def _write(self, record: Record) -> None:
        self._record = record
        new = self._group.record_file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(record))
        os.replace(new, self._group.record_file)


def read_record(path: Path) -> Record:
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else Record()
