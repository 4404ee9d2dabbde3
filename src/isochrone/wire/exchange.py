"""One request and its answer, whatever carried it: what the wire hands up, and what it is handed back.

The wire calls ``Application.route`` once per distinct message head, and ``Route.handle`` (or ``open``) per request.
Heads repeat: an agent sends the same header bytes with every request. So a parsed ``Head`` is memoised by its bytes and
shared by requests, and what upper layers derive from it alone hangs on ``Head.route``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]
Buffer = bytes | bytearray | memoryview


class Head:
    """A parsed message head. Header names are lower case. Shared between requests: never changed after parsing."""

    __slots__ = (
        "authority",
        "chunked",
        "content_length",
        "direct",
        "ends_by_closing",
        "expects_continue",
        "headers",
        "is_grpc",
        "is_http2",
        "keep_alive",
        "method",
        "route",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        #: HTTP/2's ``:authority``, which stands in for Host.
        self.authority = b""
        #: Announced length of the body; -1: not announced.
        self.content_length = -1
        self.chunked = False
        self.keep_alive = True
        #: HTTP/1.0: an answer of unknown length ends with its connection.
        self.ends_by_closing = False
        self.expects_continue = False
        #: What only HTTP/2 can carry (trailers, streams) may be asked for.
        self.is_http2 = False
        #: A gRPC call: its refusals are statuses in trailers, and its body says its size in its first bytes.
        self.is_grpc = False
        self.route: Route | None = None
        #: Known to be routed, with a body of announced length and nothing out of the ordinary: the short way is open.
        self.direct = False

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Owner(Protocol):
    """Whoever works on an exchange's answer, and wants to know when nobody waits for it any more."""

    def abandoned(self) -> None: ...


class Memory(Protocol):
    """A part of the process's memory budget that something may grow in; all of it is free again when that is over."""

    def reserve(self, size: int) -> bool:
        """Takes ``size`` bytes before they are used; False: there is no memory for them."""
        ...

    def give_back(self, size: int) -> None: ...

    def no_memory(self) -> str:
        """Why there is none, and what to do."""
        ...


class Exchange(Memory, Protocol):
    """One request being answered; HTTP/1.1 and HTTP/2 each have their own kind.

    Answer with ``respond``, or with ``start``, any number of ``write``, and ``end``. Calls after the peer has gone
    do nothing. All on the event loop's thread.
    """

    head: Head
    #: The whole body; set before ``Route.handle``.
    body: Buffer
    #: Monotonic ns when the last byte of the request was read.
    arrived: int
    owner: Owner | None
    #: Called once when a congested exchange can take more bytes.
    on_writable: Callable[[], None] | None
    #: Bytes of the memory budget held for the request, until it is answered.
    reserved: int

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads more slowly than it is written to: a producer should wait for ``on_writable``."""
        ...

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        """Answers whole. ``content-length`` is added here."""
        ...

    def start(self, status: int, headers: Headers) -> None: ...

    def write(self, body: Sequence[Buffer]) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None:
        """Breaks off an answer that was started and cannot be finished: the peer must not take it for whole."""
        ...


class Consumer(Protocol):
    """Receives a streamed request body as it comes."""

    def data_received(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def shed(self) -> None:
        """There is no memory for further answers: refuses requests that have none yet."""
        ...

    def stopping(self) -> None:
        """The server stops. Ends the call as soon as nothing is under way; called again every second until then."""
        ...


class Route:
    """Where requests with one head go."""

    #: True: ``open`` is called when the head has come; False: ``handle`` when the body has.
    streaming = False

    def handle(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def open(self, exchange: Exchange) -> Consumer:
        raise NotImplementedError


class Application(Protocol):
    """What a listener serves."""

    def route(self, head: Head) -> Route:
        """Never raises: an unknown target gets a route that answers 404."""
        ...
