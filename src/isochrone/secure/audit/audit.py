"""The audit of one server: records of changes before they take effect, records of requests in batches.

``begin`` returns when a change's record is on the disk, or raises: then the change must not take effect. Records of
requests are put into a buffer on the event loop; a thread writes the buffer ten times a second, or when it is large.
While the log cannot be written, the thread tries again, and ``refusal`` says why new requests must be refused.

What access rules refuse is counted (``refusals``), and written by the same thread. It fills no buffer and refuses
nothing: strangers must not decide over others' requests.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Final

import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.observe.sparing import Sparing
from isochrone.secure.audit.actor import ANONYMOUS, Actor
from isochrone.secure.audit.failures import AuditUnavailable, cannot_write
from isochrone.secure.audit.log import AuditLog
from isochrone.secure.audit.records import ATTEMPT, DONE, FAILED, REFUSED, Entry
from isochrone.secure.audit.refusals import FewPerPeriod, Kind, Refusals
from isochrone.secure.audit.settings import AuditSettings

log = structlog.get_logger(__name__)

#: Between two writes of the buffer.
_PERIOD_SECONDS: Final = 0.1
#: Records at which the buffer is written at once, and those at which further requests are refused. Requests in flight
#: come on top.
_BATCH: Final = 1024
_MOST: Final = 8192
#: Refused changes of strangers a minute that have a record each; the others are counted.
_OF_STRANGERS: Final = 100
#: For the last records when a server stops.
_STOP_SECONDS: Final = 10.0


class Audit:
    """``add``, ``refusal`` and ``refused_access`` are the event loop's."""

    def __init__(self, settings: AuditSettings) -> None:
        """Raises ``FlagError``."""
        self.settings = settings
        self.log = AuditLog(settings)
        self._waiting: list[Entry] = []
        #: The entries of the write under way; after a failure, of the one that is tried again.
        self._taken: list[Entry] = []
        self._problem = ""
        self._refusals = Refusals()
        self._of_strangers = FewPerPeriod(_OF_STRANGERS)
        #: The loop counts while the thread makes records of what was counted. It is held for some 100 µs, and requests
        #: that are allowed never take it.
        self._counting = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._complaints = Sparing(SECOND)

    def start(self) -> None:
        """Raises ``FlagError`` and ``OSError``."""
        self.log.open()
        self._log_head("the audit log is open")
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, and closes the log. Blocking."""
        if not self._thread.is_alive():
            return
        self._stopping = True
        self._wake.set()
        self._thread.join(_STOP_SECONDS)
        # A write that hangs leaves refusals in their tally.
        if left := len(self._taken) + len(self._waiting) + self._refusals.waiting:
            log.error("records of the audit log were lost at the stop", records=left, error=self._problem)
        self.log.close()
        self._log_head("the audit log is closed")

    def _log_head(self, event: str) -> None:
        """Logs often leave the machine: what they say of the head, nobody can change here."""
        sequence, head = self.log.head
        log.info(event, directory=str(self.log.directory), sequence=sequence, head=head)

    # Changes.

    async def begin(self, actor: Actor, action: str, subject: str, details: dict[str, Any]) -> Attempt:
        """The change may take effect when this returns. Raises ``AuditUnavailable``."""
        entry = Entry(time.time_ns(), actor, action, subject, ATTEMPT, details)
        number = await asyncio.to_thread(self.log.write, [entry])
        return Attempt(self, actor, action, subject, number)

    def refused(self, actor: Actor, action: str, subject: str, details: dict[str, Any]) -> None:
        """A change whose caller may not make it: nothing happens, so that the record may come in a batch. A stranger
        must not make the disk work for each attempt, nor fill it or the memory: many are counted. Raises
        ``AuditUnavailable``."""
        if actor.kind == ANONYMOUS and not self._of_strangers.lets_through(now_ns()):
            self.refused_access(actor, "", str(details.get("error", "")), action)
            return
        if (refusal := self.refusal()) is not None:
            raise refusal
        self.add(Entry(time.time_ns(), actor, action, subject, REFUSED, details))

    def refused_access(self, actor: Actor, permission: str, error: str, change: str = "") -> None:
        """A request was refused by access rules, whatever it asked for: never raises, and takes bounded memory.

        ``permission``: what it needed; ``error``: the code of its answer; ``change``: its action, if it is a change.
        """
        with self._counting:
            self._refusals.add(Kind(actor, permission, error, change), time.time_ns())

    # Requests.

    def add(self, entry: Entry) -> None:
        """Of a request that ends. It is on the disk within some 100 ms."""
        self._waiting.append(entry)
        if len(self._waiting) == _BATCH:
            self._wake.set()

    @property
    def is_writable(self) -> bool:
        return not self._problem and len(self._waiting) < _MOST

    def refusal(self) -> AuditUnavailable | None:
        """What new requests are answered with; None: they may come in."""
        if self.is_writable:
            return None
        reason = self._problem or f"it does not keep up: {len(self._waiting)} records wait"
        return cannot_write(self.log.directory, reason)

    # The thread.

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_PERIOD_SECONDS)
            self._wake.clear()
            self._write_waiting()
        self._write_waiting(is_last=True)

    def _write_waiting(self, *, is_last: bool = False) -> None:
        # The loop appends to whichever list it finds: the lists change places before this one is read.
        taken, self._waiting = self._waiting, []
        self._taken += taken
        # While the log cannot be written, the tally goes on counting: it is bounded, and the list here is not.
        if is_last or not self._problem:
            with self._counting:
                self._taken += self._refusals.drain(now_ns(), everything=is_last)
        if not self._taken:
            return
        try:
            self.log.write(self._taken)
        except Exception as error:
            self._problem = error.message if isinstance(error, IsochroneError) else f"{type(error).__name__}: {error}"
            more = self._complaints.lets_through(now_ns())
            if more is not None:
                log.warning("the audit log cannot be written", waiting=len(self._taken), error=self._problem)
        else:
            self._taken, self._problem = [], ""


class Attempt:
    """A change whose record is on the disk."""

    __slots__ = ("_action", "_actor", "_audit", "_number", "_subject")

    def __init__(self, audit: Audit, actor: Actor, action: str, subject: str, number: int) -> None:
        self._audit = audit
        self._actor, self._action, self._subject, self._number = actor, action, subject, number

    async def ended(self, error: BaseException | None = None, **details: Any) -> None:
        """The change has taken effect, or failed. It never raises: what has happened cannot be refused any more."""
        outcome = DONE
        if isinstance(error, IsochroneError):
            outcome = REFUSED if error.http_status in (401, 403) else FAILED
            details |= {"error": error.code, "message": error.message}
        elif error is not None:
            outcome = FAILED
            details |= {"error": type(error).__name__}
        await self._write(outcome, details)

    async def answered(self, status: int) -> None:
        """The same, of an answer with this HTTP status."""
        outcome = DONE if status < 400 else REFUSED if status in (401, 403) else FAILED
        await self._write(outcome, {"status": status})

    async def _write(self, outcome: str, details: dict[str, Any]) -> None:
        details["attempt"] = self._number
        entry = Entry(time.time_ns(), self._actor, self._action, self._subject, outcome, details)
        try:
            await asyncio.to_thread(self._audit.log.write, [entry])
        except AuditUnavailable:
            # With those of requests, as soon as the log can be written.
            self._audit.add(entry)
