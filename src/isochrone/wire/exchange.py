"""The server-side interface of the wire: a request and its answer, over HTTP/1.1 or HTTP/2.

The wire calls ``Application.route`` once per distinct message head, and ``Route.handle`` (or ``open``) per request.
Heads repeat: an agent sends the same header bytes with every request. So a parsed ``Head`` is memoised by its bytes and
shared by requests, and ``Head.route`` keeps everything that upper layers derive from the head alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from isochrone.secure.access.grants import Grant

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]
Buffer = bytes | bytearray | memoryview


class Head:
    """A parsed message head. Header names are lower case. Shared between requests, so immutable after parsing."""

    __slots__ = (
        "authority",
        "chunked",
        "content_length",
        "direct",
        "ends_by_closing",
        "expects_continue",
        "grant",
        "headers",
        "is_grpc",
        "is_http2",
        "keep_alive",
        "method",
        "peer",
        "route",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        #: HTTP/2's ``:authority``, the equivalent of Host.
        self.authority = b""
        #: Announced length of the body; -1: not announced.
        self.content_length = -1
        self.chunked = False
        self.keep_alive = True
        #: HTTP/1.0: an answer of unknown length ends with its connection.
        self.ends_by_closing = False
        self.expects_continue = False
        #: The request came over HTTP/2: trailers and streams are possible.
        self.is_http2 = False
        #: A gRPC call: errors are statuses in trailers, and the first bytes of the body announce its size.
        self.is_grpc = False
        self.route: Route | None = None
        #: Names in the certificate of the peer, whose connection then has heads of its own.
        self.peer: tuple[str, ...] = ()
        #: What its credential allows (``secure.access``); None: the server has no access rules.
        self.grant: Grant | None = None
        #: The head is routed, has a body of announced length and nothing unusual: the fast path applies.
        self.direct = False

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Owner(Protocol):
    """The object that works on an exchange's answer."""

    def abandoned(self) -> None:
        """The caller has disconnected: the answer is no longer needed."""


class Memory(Protocol):
    """A part of the process's memory budget, for one request. All of it is released when the request ends."""

    def reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes before they are used; False: there is no memory."""
        ...

    def give_back(self, size: int) -> None: ...

    def no_memory(self) -> str:
        """The error message for a failed reservation."""
        ...


class Exchange(Memory, Protocol):
    """One request and its answer. HTTP/1.1 and HTTP/2 each implement it.

    Answer with ``respond``, or with ``start``, any number of ``write``, and ``end``. Calls after the peer has
    disconnected have no effect. For the event loop's thread only.
    """

    head: Head
    #: The whole body; set before ``Route.handle``.
    body: Buffer
    #: Monotonic ns when the last byte of the request was read.
    arrived: int
    owner: Owner | None
    #: Called once, when a congested exchange can take more bytes.
    on_writable: Callable[[], None] | None
    #: Bytes of the memory budget held for the request, until it is answered.
    reserved: int

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads more slowly than the server writes: a producer should wait for ``on_writable``."""
        ...

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        """Send a complete answer. Adds ``content-length``."""
        ...

    def start(self, status: int, headers: Headers) -> None: ...

    def write(self, body: Sequence[Buffer]) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None:
        """Abort an answer that was started and cannot be finished, so that the peer does not accept it as complete."""
        ...


class Consumer(Protocol):
    """Receives a streamed request body as it arrives."""

    def data_received(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def shed(self) -> None:
        """Reject requests that have no answer yet: there is no memory for further answers."""
        ...

    def stopping(self) -> None:
        """The server is stopping: end the call once no request is in progress. Called every second until then."""
        ...


class Route:
    """The handler of requests with one message head."""

    #: True: ``open`` is called after the head; False: ``handle`` is called after the body.
    streaming: ClassVar[bool] = False

    def handle(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def open(self, exchange: Exchange) -> Consumer:
        raise NotImplementedError


class Application(Protocol):
    """The interface that a listener serves."""

    def route(self, head: Head) -> Route:
        """The route for a message head. Never raises: an unknown target gets a route that answers 404."""
        ...
