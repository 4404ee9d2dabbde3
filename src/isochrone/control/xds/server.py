"""Serves xDS: one stream per client (``ads`` decides what it gets), and the resources that all of them share.

Any controller can serve it, not only the leader. While the store is unavailable, clients keep what they have. Must
never hold a client's stream after it has ended, and never publish anything while nothing changes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from isochrone.background_tasks import BackgroundTasks
from isochrone.control.grpc_listening import GrpcCertificate, open_port
from isochrone.control.state.events import event
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import XdsServerRecord
from isochrone.control.state.records import EpochRecord, EventRecord
from isochrone.control.state.view import View
from isochrone.control.xds import messages
from isochrone.control.xds.ads import Rejection, Request, Response
from isochrone.control.xds.clients import MOST_PER_HOST, PATIENCE, Client, Clients
from isochrone.control.xds.registration import XdsRegistration
from isochrone.control.xds.resources import ENVOY, Resources, envoy_listener, resources_of
from isochrone.control.xds.served_versions import ServedVersions
from isochrone.control.xds.snapshot import RoutedFleet, routed_fleet
from isochrone.errors import FlagError, InvalidArgument
from isochrone.secure.loopback import is_loopback
from isochrone.store.base import Store, StoreUnavailable
from isochrone.store.mirror import Mirror

log = structlog.get_logger(__name__)

#: In a node's metadata: the address on which an Envoy wants a listener.
LISTEN_KEY = "isochrone_listen"
#: Seconds for the workers' indexes to be read after a commit.
_DISCOVERY_SECONDS = 0.5
#: And at the start, when nothing is known of them.
_FIRST_DISCOVERY_SECONDS = 5.0
#: Seconds between reads of the indexes while a committed version is on no worker.
_RETRY_SECONDS = 0.2
#: Seconds between two looks at clients that do not take an epoch over, and between two changes of the server's record.
_LOOK_SECONDS = 1.0
#: Seconds for a stream to subscribe to something.
_FIRST_REQUEST_SECONDS = 5.0
#: Seconds for the other subscriptions of a client that returns, which sends all of them at once.
_RETURN_SECONDS = 0.1
#: Clients that are woken at once. A large fleet's clients would hold the loop, which may also lead.
_SLICE = 8
#: Streams at once, and rejections that are remembered so that each is one event.
_MOST_STREAMS, _MOST_REPORTED = 4096, 1024
#: A client that is gone without a word is noticed after these.
_KEEPALIVE = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]


class XdsServer:
    """The xDS service of one controller, by its name."""

    def __init__(self, store: Store, keys: Keys, mirror: Mirror, name: str, lease_seconds: float = 5.0) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._name = name
        self._registration = XdsRegistration(store, keys, lease_seconds)
        self._changed = asyncio.Event()
        self._served = ServedVersions(self._changed.set)
        self._fleet: RoutedFleet | None = None
        #: None: nothing is known yet. A client that connects again keeps what it has until then.
        self._resources: Resources | None = None
        #: What the resources were made of.
        self._basis: object = None
        self._epoch_revision = self._number = 0
        #: When the epoch of that revision was read.
        self._commit_read = 0.0
        self._is_looking = False
        #: Of the epoch's record: the revision, and its number.
        self._seen_commit = (0, 0)
        self._published = asyncio.Event()
        self._clients = Clients()
        self._wakes: dict[Client, asyncio.Event] = {}
        #: A client has come, gone, or taken something over.
        self._moved = asyncio.Event()
        self._reported: set[tuple[str, str, str]] = set()
        self._tasks = BackgroundTasks()

    async def serve(self, host: str, port: int, tls: GrpcCertificate | None = None) -> None:
        """Serve until cancelled."""
        server = grpc.aio.server(options=_KEEPALIVE, maximum_concurrent_rpcs=_MOST_STREAMS)
        # Requests are parsed here: grpcio would log a traceback for bytes that are none.
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream, None, messages.DiscoveryResponse.SerializeToString
        )
        methods = {"StreamAggregatedResources": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.ADS, methods),))
        try:
            bound = open_port(server, host, port, tls)
        except RuntimeError as error:
            raise FlagError("--xds-listen", "an address that is free", f"{host}:{port} ({error})") from None
        self._mirror.on_change.append(self._changed.set)
        parts = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._register(host, bound))]
        try:
            await server.start()
            log.info("listening", service="xds", host=host, port=bound)
            if not is_loopback(host) and (tls is None or not tls.client_ca):
                log.warning(
                    "xDS is reachable from other machines and does not authenticate clients: every client that reaches "
                    "it learns the workers' addresses; keep it in a private network, or listen on 127.0.0.1",
                    host=host,
                )
            await asyncio.gather(*parts)
        finally:
            self._mirror.on_change.remove(self._changed.set)
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await server.stop(0)
            await self._tasks.end()
            await self._served.close()
            await self._registration.end()

    # The resources.

    async def _follow(self) -> None:
        """Publish what the store and the workers say, after every change."""
        while True:
            self._changed.clear()
            try:
                await self._publish()
            except Exception as error:
                # One record that makes no sense must not end the service for all others.
                log.error("the routes could not be published", exc_info=error)
                await asyncio.sleep(1.0)
            await self._changed.wait()

    async def _publish(self) -> None:
        view, keys = View(self._keys, self._mirror.entries), self._keys
        standbys = frozenset(view.standbys)
        self._served.keep(view.workers, view.drains, connected=self._mirror.connected)
        entry = view.entries.get(keys.epoch)
        revision = entry.revision if entry is not None else 0
        if (revision, self._served.changes, standbys, self._is_held) == self._basis:
            return
        if entry is not None and view.is_unreadable(keys.epoch):
            return  # the last one counts; the leader reports it
        # Before anything is awaited: the records may change meanwhile.
        epoch = view.epoch or EpochRecord(0)
        if revision != self._epoch_revision:
            # Workers have loaded the new versions only a moment before.
            await self._served.read_all(_DISCOVERY_SECONDS if self._resources is not None else _FIRST_DISCOVERY_SECONDS)
            self._epoch_revision, self._commit_read = revision, time.monotonic()
        changes, workers = self._served.changes, self._served.workers(standbys)
        if len(self._served) and not workers:
            return  # if no worker can be read, it is this controller that cannot reach them
        # Off the loop, which a thousand models on fifty workers would hold for more than a second.
        before = self._fleet
        fleet = await asyncio.to_thread(routed_fleet, epoch, workers, before)
        is_held = bool(fleet.kept) and self._is_recent
        if before is not None and is_held:
            # The leader is to keep the former versions.
            fleet = replace(fleet, epoch=before.epoch)
        elif fleet.kept and (before is None or before.epoch != fleet.epoch):
            log.warning(
                "no worker is known to serve what is committed", epoch=fleet.epoch, models=sorted(fleet.kept)[:10]
            )
        self._basis = (revision, changes, standbys, is_held)
        if fleet == before:
            return  # as while workers load versions that are not committed
        self._number += 1
        resources = await asyncio.to_thread(resources_of, fleet, self._number, self._resources)
        if before is not None and fleet.epoch != before.epoch:
            self._reported.clear()
        self._fleet, self._resources = fleet, resources
        if is_held and not self._is_looking:
            self._is_looking = True
            self._tasks.start(self._look_for_versions())
        log.debug("routes published", epoch=fleet.epoch, models=len(fleet.models))
        self._published.set()
        self._moved.set()
        await self._wake_clients()

    async def _wake_clients(self) -> None:
        for number, wake in enumerate(list(self._wakes.values()), 1):
            wake.set()
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    @property
    def _is_recent(self) -> bool:
        """Whether the leader may still wait for clients to take the epoch over."""
        return time.monotonic() - self._commit_read < PATIENCE

    @property
    def _is_held(self) -> bool:
        """Whether models keep their former routes, and the former epoch counts for that."""
        return self._fleet is not None and bool(self._fleet.kept) and self._is_recent

    async def _look_for_versions(self) -> None:
        """Read the workers often while routes are held: they loaded the versions before the commit."""
        while self._is_held:
            await asyncio.sleep(_RETRY_SECONDS)
            await self._served.read_all(_DISCOVERY_SECONDS)
        self._is_looking = False
        self._changed.set()

    async def _register(self, host: str, port: int) -> None:
        written = None
        while True:
            self._moved.clear()
            if self._resources is not None:
                now = time.monotonic()
                # From the commit on, whether or not its routes can be published.
                self._clients.commit(self._committed(), now)
                epoch = self._clients.epoch(now)
                for client in self._clients.newly_late(now):
                    detail = f"it routes by epoch {client.protocol.epoch}, not {epoch}; nothing waits for it now"
                    self._report("xDS client is late", client.name, detail)
                record = XdsServerRecord(self._name, host, port, epoch, len(self._clients))
                await self._registration.write(record)
                if record != written:
                    # Clients that come and go must not write to the store at their pace.
                    written = record
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._moved.wait()
            except TimeoutError:
                pass

    def _committed(self) -> int:
        """The number of the committed epoch; of the last one that could be read."""
        entry = self._mirror.entries.get(self._keys.epoch)
        if entry is not None and entry.revision != self._seen_commit[0]:
            record = View(self._keys, self._mirror.entries).epoch
            if record is not None and record.epoch >= self._seen_commit[1]:
                self._seen_commit = (entry.revision, record.epoch)
        return self._seen_commit[1]

    # The clients.

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        peer = context.peer()
        client, wake = Client(peer, host=peer.rpartition(":")[0]), asyncio.Event()
        if not self._clients.enter(client):
            message = f"expected at most {MOST_PER_HOST} streams of one host, given one more by {client.host}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._wakes[client] = wake
        reading = asyncio.ensure_future(self._read(requests, client, wake))
        has_waited = False
        try:
            while True:
                wake.clear()
                if client.protocol.is_returning and not has_waited:
                    has_waited = True
                    await asyncio.sleep(_RETURN_SECONDS)
                responses = client.protocol.due(self._resources) if self._resources is not None else []
                # Before anything is written: a client that does not read counts as well.
                self._clients.moved(client, time.monotonic())
                self._moved.set()
                for response in responses:
                    await context.write(_message(response))
                if reading.done():
                    reading.result()
                    return
                if client.is_overdue and not client.protocol.is_subscribed:
                    message = f"expected a subscription within {_FIRST_REQUEST_SECONDS:g} s"
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, message)
                await wake.wait()
        except InvalidArgument as error:
            self._report("xDS client refused", client.name, error.message)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        finally:
            reading.cancel()
            self._clients.leave(client)
            del self._wakes[client]
            self._moved.set()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[bytes], client: Client, wake: asyncio.Event) -> None:
        def end_silence() -> None:
            client.is_overdue = True
            wake.set()

        # What a client asks for is judged by what there is.
        await self._published.wait()
        overdue = asyncio.get_running_loop().call_later(_FIRST_REQUEST_SECONDS, end_silence)
        try:
            async for encoded in requests:
                message = _parsed(encoded)
                if not client.is_introduced:
                    client.is_introduced = True
                    _introduce(message.node, client)
                rejection = client.protocol.receive(_request(message), self._resources or Resources())
                if rejection is not None:
                    self._reject(client, rejection)
                wake.set()
        finally:
            overdue.cancel()
            wake.set()

    def _reject(self, client: Client, rejection: Rejection) -> None:
        kind = rejection.type_url.rpartition(".")[2]
        log.warning("an xDS client rejects what it was sent", client=client.name, kind=kind, error=rejection.message)
        self._report("xDS client rejected", client.name, f"{kind} {rejection.version}: {rejection.message[:500]}", kind)

    def _report(self, what: str, client: str, detail: str, kind: str = "") -> None:
        """Write an event, once per client, kind and epoch."""
        key = (what, client, kind)
        if key in self._reported or len(self._reported) >= _MOST_REPORTED:
            return
        self._reported.add(key)
        record = EventRecord(time.time(), self._name, what, client, detail)
        self._tasks.start(self._write_event(record))

    async def _write_event(self, record: EventRecord) -> None:
        try:
            await self._store.transact((), (event(self._keys, record, secrets.token_hex(4)),), durable=False)
        except StoreUnavailable as error:
            log.debug("an event could not be written", error=str(error))


def _parsed(encoded: bytes) -> Any:
    try:
        return messages.DiscoveryRequest.FromString(encoded)
    except DecodeError:
        raise InvalidArgument(f"expected a DiscoveryRequest, given {len(encoded)} bytes that are none") from None


def _introduce(node: Any, client: Client) -> None:
    """Take the client's name, and the listener that it asks for, from its first request."""
    client.name = (node.id or client.name)[:200]
    wanted = node.metadata.fields.get(LISTEN_KEY) if LISTEN_KEY in node.metadata.fields else None
    if wanted is not None:
        client.protocol.own_listener = {ENVOY: envoy_listener(*_address(wanted.string_value))}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        address = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
        if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            return address, int(port)
    except ValueError:
        pass
    raise InvalidArgument(f"node.metadata.{LISTEN_KEY}: expected IP:PORT, given '{text[:100]}'")


def _request(message: Any) -> Request:
    error = message.error_detail.message or "no reason given" if message.HasField("error_detail") else None
    names = tuple(message.resource_names)
    return Request(message.type_url, names, message.response_nonce, error, message.version_info)


def _message(response: Response) -> Any:
    resources = [{"type_url": response.type_url, "value": value} for value in response.resources.values()]
    return messages.DiscoveryResponse(
        version_info=response.version, resources=resources, type_url=response.type_url, nonce=response.nonce
    )
