"""Looks host names up within a time limit, and remembers the last addresses of each.

The system's resolver blocks its thread, for tens of seconds if no name server answers. So lookups run on threads of
their own, never on the event loop's default executor, which others need. They are daemon threads: a lookup that hangs
does not delay the end of the process. Callers that ask for the same name share one lookup.

While a name does not resolve, connections use its last addresses. The log says when that begins and when it ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.clock import SECOND, now_ns
from isochrone.resolving.outages import Outage

log = structlog.get_logger(__name__)

#: Seconds after which a lookup counts as failed. Its answer is used nevertheless when it comes.
LOOKUP_SECONDS = 3.0
#: Seconds that a caller waits for a lookup if the name's last addresses are known.
_PATIENCE = 0.2
#: Seconds between lookups of a name that fails, and after which one that nobody asks for is forgotten.
_RETRY_SECONDS, _UNUSED_NS = 2.0, 300 * SECOND
_MOST_THREADS = 16
#: Names remembered; those asked for last stay.
_MOST_NAMES = 1024

LookUp = Callable[[str], Iterable[str]]


class DoesNotResolve(OSError):
    """A lookup failed, or takes too long."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the name {name} does not resolve: {reason}")
        self.reason = reason


@dataclass(slots=True)
class _Name:
    #: Of the last lookup that was answered, in its order.
    addresses: tuple[str, ...] = ()
    #: Why the last lookup failed; "": it was answered.
    error: str = ""
    failures: int = 0
    asked_at: int = 0
    #: A task repeats the lookup until it is answered.
    is_watched: bool = False
    outage: Outage = field(default_factory=Outage)


@dataclass(frozen=True, slots=True)
class NameState:
    """For metrics and status pages."""

    name: str
    #: "": it resolves.
    error: str
    failures: int
    addresses: tuple[str, ...]


def is_literal(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address, which needs no lookup."""
    try:
        if ":" in host:
            socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        else:
            socket.inet_pton(socket.AF_INET, host)
    except (OSError, ValueError):
        return False
    return True


def look_up(name: str) -> list[str]:
    """The addresses of a name by the system's resolver, each once."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Resolver:
    """The names of one process. Any thread and event loop may use it."""

    def __init__(self, look_up: LookUp = look_up, clock: Callable[[], int] = now_ns) -> None:
        self._look_up = look_up
        self._clock = clock
        self._lock = threading.Lock()
        # All under the lock.
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._lookups: dict[str, Future[tuple[str, ...]]] = {}
        self._waiting: deque[str] = deque()
        self._threads = 0
        self._watches = BackgroundTasks()

    async def addresses(self, host: str, seconds: float = LOOKUP_SECONDS) -> tuple[str, ...]:
        """Where to connect to: a name's present addresses, or the last ones while it does not resolve. Raise
        ``DoesNotResolve`` if there are none."""
        if is_literal(host):
            return (host,)
        known = self._asked(host)
        if not known.addresses:
            return await self.look(host, seconds)
        if not known.error:
            try:
                return await self._answer(host, min(_PATIENCE, seconds))
            except (TimeoutError, DoesNotResolve):
                pass
        if not known.is_watched:
            known.is_watched = True
            self._watches.start(self._watch(host, known))
        return known.addresses

    async def look(self, host: str, seconds: float = LOOKUP_SECONDS) -> tuple[str, ...]:
        """What the name servers say now. Raise ``DoesNotResolve``."""
        if is_literal(host):
            return (host,)
        self._asked(host)
        try:
            return await self._answer(host, seconds)
        except TimeoutError:
            raise self._hangs(host, seconds) from None

    def look_blocking(self, host: str, seconds: float = LOOKUP_SECONDS) -> tuple[str, ...]:
        """The same for code without an event loop."""
        if is_literal(host):
            return (host,)
        self._asked(host)
        try:
            return self._begin(host).result(seconds)
        except TimeoutError:
            raise self._hangs(host, seconds) from None

    def states(self) -> list[NameState]:
        with self._lock:
            return [
                NameState(name, known.error, known.failures, known.addresses) for name, known in self._names.items()
            ]

    def fault(self, host: str) -> str:
        """Why a name does not resolve; "": it does, or nobody has asked for it."""
        with self._lock:
            known = self._names.get(host)
            return known.error if known is not None else ""

    async def _answer(self, name: str, seconds: float) -> tuple[str, ...]:
        """Raise ``TimeoutError``: the lookup goes on, for the next caller."""
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(self._begin(name))

    async def _watch(self, name: str, known: _Name) -> None:
        """Repeat the lookup until it is answered: nobody else may ask, since connections stay open."""
        try:
            while True:
                try:
                    await self._answer(name, LOOKUP_SECONDS)
                    return
                except TimeoutError:
                    self._hangs(name, LOOKUP_SECONDS)
                except DoesNotResolve:
                    pass
                if self._clock() - known.asked_at > _UNUSED_NS:
                    with self._lock:
                        self._names.pop(name, None)
                    return
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            known.is_watched = False

    def _asked(self, name: str) -> _Name:
        with self._lock:
            known = self._known(name)
            known.asked_at = self._clock()
            return known

    def _known(self, name: str) -> _Name:
        """Under the lock."""
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _Name()
            if len(self._names) > _MOST_NAMES:
                self._names.popitem(last=False)
        self._names.move_to_end(name)
        return known

    def _begin(self, name: str) -> Future[tuple[str, ...]]:
        """The lookup of a name that is under way, or a new one."""
        with self._lock:
            lookup = self._lookups.get(name)
            if lookup is not None:
                return lookup
            lookup = self._lookups[name] = Future()
            # A caller that goes away does not cancel it for the others.
            lookup.set_running_or_notify_cancel()
            self._waiting.append(name)
            if self._threads < _MOST_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="isochrone-lookup", daemon=True).start()
            return lookup

    def _work(self) -> None:
        """A thread: it ends when no lookup waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                name = self._waiting.popleft()
            answer: tuple[str, ...] | DoesNotResolve
            try:
                answer = tuple(self._look_up(name)) or DoesNotResolve(name, "it has no address")
            except (OSError, ValueError) as error:
                # ValueError: a name that cannot be encoded.
                answer = DoesNotResolve(name, getattr(error, "strerror", None) or str(error))
            except Exception as error:
                log.error("a lookup failed unexpectedly", name=name, exc_info=error)
                answer = DoesNotResolve(name, f"{type(error).__name__}: {error}")
            with self._lock:
                lookup = self._lookups.pop(name)
            if isinstance(answer, DoesNotResolve):
                self._failed(name, answer.reason)
                lookup.set_exception(answer)
            else:
                self._answered(name, answer)
                lookup.set_result(answer)

    def _answered(self, name: str, addresses: tuple[str, ...]) -> None:
        with self._lock:
            known = self._known(name)
            known.addresses, known.error = addresses, ""
            is_line_due = known.outage.ended(self._clock())
        if is_line_due:
            log.info("a name resolves again", name=name, addresses=list(addresses), failures=known.failures)

    def _hangs(self, name: str, seconds: float) -> DoesNotResolve:
        reason = f"no answer within {seconds:g} s"
        with self._lock:
            # Otherwise its answer came at the last moment.
            is_under_way = name in self._lookups
        if is_under_way:
            self._failed(name, reason)
        return DoesNotResolve(name, reason)

    def _failed(self, name: str, reason: str) -> None:
        with self._lock:
            known = self._known(name)
            known.error = reason
            known.failures += 1
            is_line_due = known.outage.failed(reason, self._clock())
        if is_line_due:
            log.warning(
                "a name does not resolve; its last addresses stay"
                if known.addresses
                else "a name does not resolve, and no address of it is known",
                name=name,
                error=reason,
                addresses=list(known.addresses),
                failures=known.failures,
            )


#: The one of this process.
resolver = Resolver()
