"""Many connections at the same time, HTTP/1.1 and gRPC, each a closed loop of one; every answer is checked.

The connection and memory benches use it. It measures correctness and numbers of connections, not speed: the generator
is Python and needs a core before the worker does. A wrong answer never counts as an answer.
"""

import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol

from bench.worker.conversations import OPENING, ConversationFailed, GrpcConversation, HttpConversation


class Client(Protocol):
    """One connection's side of the talk; `feed` is true once an answer is whole and as expected."""

    def opening(self) -> bytes: ...

    def request(self) -> bytes | bytearray: ...

    def feed(self, data: bytes) -> bool: ...

    def outgoing(self) -> bytes: ...


@dataclass(frozen=True)
class HttpExchange:
    """A request as bytes and the status it must get."""

    name: str
    request: bytes
    status: int = 200


class HttpClient:
    """Sends its exchanges in turn."""

    def __init__(self, exchanges: Sequence[HttpExchange]) -> None:
        self._turns = cycle(exchanges)
        self._exchange = exchanges[0]
        self._conversation = HttpConversation()

    def opening(self) -> bytes:
        return b""

    def outgoing(self) -> bytes:
        return b""

    def request(self) -> bytes:
        self._exchange = next(self._turns)
        return self._exchange.request

    def feed(self, data: bytes) -> bool:
        status = self._conversation.feed(data)
        if status and status != self._exchange.status:
            answer = self._conversation.answer[-300:]
            raise ConversationFailed(
                f"{self._exchange.name}: expected status {self._exchange.status}, given {status}: {answer!r}"
            )
        return bool(status)


@dataclass(frozen=True)
class GrpcExchange:
    """A message in its gRPC frame, and the bytes its answer must have; 0: it must be an error, which has none."""

    name: str
    message: bytes
    answer_bytes: int


class GrpcClient:
    """Sends its exchanges in turn."""

    def __init__(self, authority: str, exchanges: Sequence[GrpcExchange]) -> None:
        self._turns = cycle(exchanges)
        self._exchange = exchanges[0]
        self._conversation = GrpcConversation(authority, exchanges[0].message)

    def opening(self) -> bytes:
        return OPENING

    def outgoing(self) -> bytes:
        data = bytes(self._conversation.outgoing)
        self._conversation.outgoing.clear()
        return data

    def request(self) -> bytes | bytearray:
        self._exchange = next(self._turns)
        self._conversation.use(self._exchange.message)
        return self._conversation.request()

    def feed(self, data: bytes) -> bool:
        size = self._conversation.feed(data)
        expected = self._exchange.answer_bytes
        if size >= 0 and (size < expected if expected else size > 0):
            raise ConversationFailed(f"{self._exchange.name}: expected {expected or 'no'} bytes, given {size}")
        return size >= 0


@dataclass
class Tally:
    """What a crowd's run came to."""

    answered: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass(slots=True)
class _Member:
    client: Client
    make: Callable[[], Client]
    address: tuple[str, int]
    socket: socket.socket
    unsent: bytes = b""
    asked: int = 0
    answers: int = 0
    busy: bool = False


class Crowd:
    """Connections that send at the same time. Each is reopened after `lifetime` answers; 0: never."""

    def __init__(self, lifetime: int = 0, keep_latencies: bool = True) -> None:
        self._epoll = select.epoll()
        self._members: dict[int, _Member] = {}
        self._lifetime = lifetime
        self._keep_latencies = keep_latencies

    def __len__(self) -> int:
        return len(self._members)

    def join(self, address: tuple[str, int], make: Callable[[], Client]) -> None:
        """One more connection; it speaks when the crowd runs."""
        connection = socket.create_connection(address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        client = make()
        member = _Member(client, make, address, connection, unsent=client.opening())
        self._members[connection.fileno()] = member
        self._epoll.register(connection, select.EPOLLIN)

    def close(self) -> None:
        for member in self._members.values():
            member.socket.close()
        self._members.clear()
        self._epoll.close()

    def run(
        self, *, requests: int = 0, seconds: float = 0.0, every_quarter_second: Callable[[int], None] | None = None
    ) -> Tally:
        """Until so many answers, or for so long; what is in flight then is waited for (5 s)."""
        tally = Tally()
        started = now = time.monotonic_ns()
        ends = started + int(seconds * 1e9) if seconds else 0
        next_tick = 0
        started_requests = 0
        for member in list(self._members.values()):
            started_requests += 1
            self._ask(member)
        open_requests = started_requests
        patience = now + 5_000_000_000
        while open_requests and now < patience:
            for file, events in self._epoll.poll(0.25):
                speaker = self._members.get(file)
                if speaker is None or not self._turn(speaker, events, tally):
                    continue
                open_requests -= 1
                now = time.monotonic_ns()
                if now < ends or started_requests < requests:
                    patience = now + 5_000_000_000
                    started_requests += 1
                    open_requests += 1
                    self._ask(self._renew(speaker))
            now = time.monotonic_ns()
            if every_quarter_second is not None and now >= next_tick:
                every_quarter_second(tally.answered)
                next_tick = now + 250_000_000
        if open_requests:
            tally.failures["no answer within 5 s"] += open_requests
        tally.seconds = (now - started) / 1e9
        return tally

    def _ask(self, member: _Member) -> None:
        member.busy = True
        member.asked = time.monotonic_ns()
        self._write(member, member.client.request())

    def _write(self, member: _Member, data: bytes | bytearray) -> None:
        """Sends, keeping what the socket does not take until it is writable."""
        data = member.unsent + data if member.unsent else data
        try:
            taken = member.socket.send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            return  # the reading side reports it, and counts it once
        member.unsent = bytes(data[taken:])
        self._epoll.modify(member.socket, select.EPOLLIN | (select.EPOLLOUT if member.unsent else 0))

    def _turn(self, member: _Member, events: int, tally: Tally) -> bool:
        """Reads and writes what one connection is ready for; true if its request ended, well or badly."""
        if events & select.EPOLLOUT:
            self._write(member, b"")
        if not events & ~select.EPOLLOUT:
            return False
        try:
            data = member.socket.recv(1 << 18)
            if not data:
                raise ConversationFailed("the server closed the connection")
            finished = member.client.feed(data)
        except BlockingIOError:
            return False
        except (OSError, ConversationFailed) as error:
            tally.failures[str(error)[:400]] += 1
            was_busy = member.busy
            self._reopen(member)
            return was_busy
        if outgoing := member.client.outgoing():
            self._write(member, outgoing)
        if finished:
            member.busy = False
            member.answers += 1
            tally.answered += 1
            if self._keep_latencies:
                tally.latencies_ns.append(time.monotonic_ns() - member.asked)
        return finished

    def _renew(self, member: _Member) -> _Member:
        """The same member, or the one on a new connection in its place."""
        if member.socket.fileno() < 0:
            return self._newest
        if self._lifetime and member.answers >= self._lifetime:
            self._reopen(member)
            return self._newest
        return member

    def _reopen(self, member: _Member) -> None:
        self._epoll.unregister(member.socket)
        del self._members[member.socket.fileno()]
        member.socket.close()
        self.join(member.address, member.make)

    @property
    def _newest(self) -> _Member:
        return next(reversed(self._members.values()))
