"""Control calls through a gateway: what it answers itself, what it asks every worker and puts together.

Health and the server's metadata are the gateway's own. Statistics and the repository index are merged over the fleet,
or given per worker when ``x-isochrone-per-worker`` is set. Loads, unloads and settings go to every worker; one that
fails makes the call fail, and the message says where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from tritonclient.grpc import service_pb2

import isochrone
from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import Internal, IsochroneError, Unavailable
from isochrone.gateway.upstream.calls import ask_grpc, ask_http
from isochrone.protocol.grpc.calls import error_block, fail, only_message, respond
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, orca_json, orca_text
from isochrone.protocol.merging import merge_indexes, merge_messages, merge_statistics
from isochrone.protocol.rest.answers import JSON, respond_error
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Route
from isochrone.wire.http2.grpc_client import message_of_response
from isochrone.wire.receiver import Response

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.gateway import Gateway
    from isochrone.wire.http2.server_stream import ServerStream

PER_WORKER_HEADER = b"x-isochrone-per-worker"
#: Seconds a worker gets for a control call; loading a model takes its time.
_CONTROL_SECONDS = 30.0
LOAD_SECONDS = 600.0
#: Seconds a worker gets to name its extensions, or as many as a health check may take if these are more.
_METADATA_SECONDS = 1.0
#: Extensions that a gateway has when all its workers do: it passes their calls on.
_OF_WORKERS = ("system_shared_memory", "cuda_shared_memory")
_PASSED = frozenset((b"content-type", b"accept", b"authorization"))


class LocalRoute(Route):
    """Answered here, at once: a status and a JSON value, or no body."""

    def __init__(self, answer: Callable[[], tuple[int, Any]]) -> None:
        self._answer = answer

    def handle(self, exchange: Exchange) -> None:
        status, value = self._answer()
        exchange.respond(status, JSON if value is not None else (), [msgspec.json.encode(value)] if value else [])


class ReadyRoute(Route):
    """Ready or not; and how loaded the gateway is, for another gateway in front of it."""

    def __init__(self, gateway: Gateway, head: Head) -> None:
        self._gateway = gateway
        self._load_format = head.get(ORCA_FORMAT_HEADER)

    def handle(self, exchange: Exchange) -> None:
        gateway = self._gateway
        headers: Headers = ()
        if self._load_format is not None:
            render = orca_text if self._load_format == b"text" else orca_json
            draining = 1.0 if gateway.is_leaving else 0.0
            report = {"named_metrics.in_flight": float(gateway.in_flight), "named_metrics.draining": draining}
            headers = ((ORCA_HEADER, render(report)),)
        exchange.respond(200 if gateway.is_ready else 400, headers, [])


class MetadataRoute(Route):
    """The gateway's own metadata; extensions that depend on the workers are listed where all of them have it.

    A worker is asked once for its own, each time it has come back."""

    def __init__(self, gateway: Gateway, name: str, extensions: Sequence[str], *, grpc: bool) -> None:
        self._gateway = gateway
        self._name = name
        self._extensions = extensions
        self._grpc = grpc

    def handle(self, exchange: Exchange) -> None:
        unknown = [member for member in self._gateway.fleet.healthy if member.known_extensions is None]
        if unknown:
            _calls.start(self._learn(unknown, exchange))
        else:
            self._answer(exchange)

    async def _learn(self, members: Sequence[Member], exchange: Exchange) -> None:
        seconds = max(_METADATA_SECONDS, self._gateway.monitoring.timeout)
        await asyncio.gather(*(_learn_extensions(member, seconds) for member in members))
        self._answer(exchange)

    def _answer(self, exchange: Exchange) -> None:
        of_workers = [member.known_extensions or () for member in self._gateway.fleet.healthy]
        common = [name for name in _OF_WORKERS if of_workers and all(name in each for each in of_workers)]
        extensions = [*self._extensions, *common]
        metadata = {"name": self._name, "version": isochrone.__version__, "extensions": extensions}
        if self._grpc:
            message = service_pb2.ServerMetadataResponse(**metadata)
            respond(cast("ServerStream", exchange), message.SerializeToString())
        else:
            exchange.respond(200, JSON, [msgspec.json.encode(metadata)])


async def _learn_extensions(member: Member, seconds: float) -> None:
    """One that does not answer properly is asked again by the next call."""
    joined = member.endpoint.joined_at
    try:
        answer = await ask_http(member.connections, b"GET", b"/v2", member.connections.own_fields(), seconds=seconds)
        ((_, value),) = _decoded([(member.upstream.address, answer)])
        member.extensions = joined, frozenset(value["extensions"])
    except (IsochroneError, KeyError, TypeError):
        return


class LocalGrpcRoute(Route):
    """Answered here, at once: a message."""

    def __init__(self, answer: Callable[[bytes], Any]) -> None:
        self._answer = answer

    def handle(self, exchange: Exchange) -> None:
        stream = cast("ServerStream", exchange)
        try:
            respond(stream, self._answer(only_message(exchange.body)).SerializeToString())
        except IsochroneError as error:
            fail(stream, error)


#: Calls in progress.
_calls = BackgroundTasks()
#: Runs the call of an exchange with a body between its records.
Recorded = Callable[[Exchange, Buffer, Callable[[], Awaitable[Any]]], Awaitable[Any]]
#: What is made of the fleet's answers: (worker, answer) each.
Gather = Callable[[Sequence[tuple[str, Response]], bool], tuple[int, Headers, bytes]]


class FanOutRoute(Route):
    """An HTTP call that goes to every healthy worker."""

    def __init__(
        self,
        gateway: Gateway,
        head: Head,
        gather: Gather,
        seconds: float = _CONTROL_SECONDS,
        check: Callable[[Buffer], Buffer] | None = None,
        *,
        changes_models: bool = False,
        recorded: Recorded | None = None,
    ) -> None:
        """``check`` makes what is sent on of a body, or raises; ``changes_models``: it is a load or an unload;
        ``recorded`` runs it between the records of the audit log."""
        self._changes_models = changes_models
        self._recorded = recorded
        self._gateway = gateway
        self._check = check
        self._head = head
        self._gather = gather
        self._seconds = seconds
        self._per_worker = head.get(PER_WORKER_HEADER) is not None
        passed = tuple(header for header in head.headers if header[0] in _PASSED)
        self._headers = passed + gateway.fleet.credential.for_caller(passed, head.peer)

    def handle(self, exchange: Exchange) -> None:
        try:
            body = exchange.body if self._check is None else self._check(exchange.body)
        except IsochroneError as error:
            respond_error(exchange, error)
            return
        _calls.start(self._ask(exchange, (body,) if len(body) else ()))

    async def _ask(self, exchange: Exchange, body: Sequence[Buffer]) -> None:
        # What is merged is in the bodies; the answer to HEAD leaves its own out.
        method = b"GET" if self._head.method == b"HEAD" else self._head.method
        target = self._head.target

        def ask(member: Member) -> Awaitable[Response]:
            return ask_http(member.connections, method, target, self._headers, body, self._seconds)

        async def answer() -> tuple[int, Headers, bytes]:
            answers = await everybody(self._gateway, ask)
            if self._changes_models:
                # Whoever asks next, of readiness or for an inference, gets what is served from now on.
                await self._gateway.models_changed()
            return self._gather(answers, self._per_worker)

        try:
            found = await (answer() if self._recorded is None else self._recorded(exchange, exchange.body, answer))
            exchange.respond(*_with_body(found))
        except IsochroneError as error:
            respond_error(exchange, error)
        except Exception as error:
            respond_error(exchange, Internal(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._gateway.look_now()


def _with_body(answer: tuple[int, Headers, bytes]) -> tuple[int, Headers, list[bytes]]:
    status, headers, body = answer
    return status, headers, [body] if body else []


async def everybody(gateway: Gateway, ask: Callable[[Member], Awaitable[Response]]) -> list[tuple[str, Response]]:
    """Asks all healthy workers at once; raises for the first that cannot be asked."""
    # When nobody seems healthy all are asked: who cannot answer says so, in words that help more than these.
    members = gateway.fleet.healthy or list(gateway.fleet.members.values())
    if not members:
        raise Unavailable("the gateway has no upstream; name one with --upstream host:port")
    answers = await asyncio.gather(*(ask(member) for member in members), return_exceptions=True)
    found: list[tuple[str, Response]] = []
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, BaseException):
            if not isinstance(answer, IsochroneError):
                raise answer
            raise Unavailable(f"worker {member.upstream.address}: {answer}")
        found.append((member.upstream.address, answer))
    return found


# What is made of HTTP answers.


def index(answers: Sequence[tuple[str, Response]], per_worker: bool) -> tuple[int, Headers, bytes]:
    values = _decoded(answers)
    if per_worker:
        rows: list[dict[str, Any]] = [{"worker": name, **row} for name, value in values for row in value]
        return 200, JSON, msgspec.json.encode(rows)
    return 200, JSON, msgspec.json.encode(merge_indexes(value for _, value in values))


def statistics(answers: Sequence[tuple[str, Response]], per_worker: bool) -> tuple[int, Headers, bytes]:
    # A worker that does not serve the model has nothing to add.
    served = [answer for answer in answers if answer[1].status == 200] or answers[:1]
    if served[0][1].status != 200:
        return _as_it_came(served[0][1])
    values = _decoded(served)
    if per_worker:
        return 200, JSON, msgspec.json.encode({"workers": dict(values)})
    return 200, JSON, msgspec.json.encode(merge_statistics(value for _, value in values))


def all_or_error(answers: Sequence[tuple[str, Response]], per_worker: bool) -> tuple[int, Headers, bytes]:
    """Everybody's answer is the same, so the first one's will do; an error names its worker."""
    for name, answer in answers:
        if answer.status >= 400:
            status, headers, body = _as_it_came(answer)
            if len(answers) == 1:
                return status, headers, body
            try:
                text = msgspec.json.decode(body)["error"]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
                text = body[:500].decode("utf-8", "replace")
            return status, JSON, msgspec.json.encode({"error": f"worker {name}: {text}"})
    return _as_it_came(answers[0][1])


def _decoded(answers: Sequence[tuple[str, Response]]) -> list[tuple[str, Any]]:
    values = []
    for name, answer in answers:
        if answer.status != 200:
            text = bytes(answer.body[:500]).decode("utf-8", "replace")
            raise Unavailable(f"worker {name} answered {answer.status}: {text}")
        try:
            values.append((name, msgspec.json.decode(answer.body)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(f"worker {name} answered with something that is not JSON: {error}") from None
    return values


def _as_it_came(answer: Response) -> tuple[int, Headers, bytes]:
    kind = answer.get(b"content-type")
    return answer.status, ((b"content-type", kind),) if kind else (), bytes(answer.body)


# gRPC.


class GrpcFanOutRoute(Route):
    """A gRPC control call that goes to every healthy worker."""

    def __init__(
        self,
        gateway: Gateway,
        head: Head,
        merge: Callable[[Sequence[bytes]], bytes],
        check: Callable[[Buffer], Buffer] | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        """``check`` makes what is sent on of a framed message, or raises; ``recorded`` runs the call between the
        records of the audit log."""
        self._recorded = recorded
        self._gateway = gateway
        self._check = check
        self._path = head.target
        passed = tuple(field for field in head.headers if field[0] == b"authorization")
        self._headers = passed + gateway.fleet.credential.for_caller(passed, head.peer)
        self._merge = merge
        self._seconds = LOAD_SECONDS if b"RepositoryModel" in head.target else _CONTROL_SECONDS

    def handle(self, exchange: Exchange) -> None:
        stream = cast("ServerStream", exchange)
        try:
            body = exchange.body if self._check is None else self._check(exchange.body)
        except IsochroneError as error:
            fail(stream, error)
            return
        _calls.start(self._ask(stream, body))

    async def _ask(self, stream: ServerStream, body: Buffer) -> None:
        async def answer() -> bytes:
            return await self._answer(body)

        try:
            recorded = self._recorded
            respond(stream, await (answer() if recorded is None else recorded(stream, stream.body, answer)))
        except IsochroneError as error:
            stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=True))
        except Exception as error:
            fail(stream, Internal(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._gateway.look_now()

    async def _answer(self, body: Buffer) -> bytes:
        def ask(member: Member) -> Awaitable[Response]:
            return ask_grpc(member.connections, self._path, body, self._headers, self._seconds)

        answers = await everybody(self._gateway, ask)
        messages: list[bytes] = []
        problems: list[IsochroneError] = []
        for name, answer in answers:
            try:
                messages.append(message_of_response(answer)[0])
            except IsochroneError as error:
                problems.append(type(error)(f"worker {name}: {error}" if len(answers) > 1 else str(error)))
        if b"RepositoryModel" in self._path:
            await self._gateway.models_changed()
        if problems and (not messages or self._merge is first_message):
            raise problems[0]
        return self._merge(messages)


def first_message(messages: Sequence[bytes]) -> bytes:
    """Everybody's answer is the same."""
    return messages[0]


def index_message(messages: Sequence[bytes]) -> bytes:
    parsed = [service_pb2.RepositoryIndexResponse.FromString(message) for message in messages]
    return bytes(merge_messages(parsed, ("name", "version")).SerializeToString())


def statistics_message(messages: Sequence[bytes]) -> bytes:
    parsed = [service_pb2.ModelStatisticsResponse.FromString(message) for message in messages]
    return bytes(merge_messages(parsed, ("name", "version")).SerializeToString())
