"""The gateway process: listeners, upstream sources, signals, and an orderly end.

Start: listen (live, not ready), watch the upstreams, be ready when the first of them is. A gateway of a fleet reserves
its port and listens when it knows what is committed: until then, callers reach other gateways. SIGTERM: say not ready,
stop accepting, finish what is in flight within the grace period, exit 0.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Protocol

import structlog

from isochrone.build_info import IS_COMPILED
from isochrone.errors import AlreadyExists
from isochrone.gateway.control_calls.refresh import REFRESH, RefreshApplication
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.metrics import GatewayMetricsApplication
from isochrone.gateway.monitoring.discovery import DnsSource, FileSource
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.server.recording import Recording
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.gateway.traffic.quota_ledger import QuotaLedger
from isochrone.gateway.upstream.credential import InternalCredential, OwnCredential
from isochrone.open_files import raise_file_limit
from isochrone.protocol.access.needs import needed_by, needed_by_page
from isochrone.protocol.applications.application import ByPath, SameOrigin
from isochrone.protocol.applications.authenticated import Authenticated
from isochrone.protocol.applications.flight_page import WithFlights
from isochrone.protocol.applications.health_page import LIVE, READY, HealthPage
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.stop_signals import stop_signals
from isochrone.wire.exchange import Application
from isochrone.wire.listening.listener import Listener
from isochrone.wire.listening.listeners import Listeners
from isochrone.wire.tls.client_tls import ClientTls

log = structlog.get_logger(__name__)

#: When the young generations are collected. Lists of a hundred replicas each make a collection of Python's 700 objects
#: take 5 ms, and one of 7,000 objects 15 ms: more and shorter ones hold the loop less. The second generation holds what
#: survived two of the first, not four: it took up to 6 ms, and takes up to 2.4 ms now. Full collections stay as rare.
_COLLECTIONS = (100, 1, 4000)
#: Callers' connections worked on before their requests are written to workers, which then work beside the gateway.
_FLUSH_EVERY = 8
#: Between two looks for changed files of certificates; listeners look as often.
_CERTIFICATES_SECONDS = 1.0


class Link(Protocol):
    """What tells a gateway which servers and versions there are: a control plane's."""

    async def start(self) -> None:
        """Returns when the gateway knows what to serve."""

    async def stop(self) -> None:
        """Called when nothing is admitted any more."""


class GroupMember(Protocol):
    """The place of a process among several that serve as one (``isochrone.multiprocess``)."""

    #: The path of a Unix-domain socket for this process's own metrics and for the others' calls.
    private_socket: str
    #: Whether the public port accepts connections before the workers are known.
    listens_at_once: bool

    def start(self, is_ready: Callable[[], bool]) -> None:
        """The process listens on its private socket; ``is_ready`` is of this process alone."""

    def all_ready(self) -> bool: ...

    @property
    def quota_ledger(self) -> QuotaLedger:
        """The accounts that all of them keep together."""

    async def refresh_others(self) -> None:
        """The other processes look at the workers again."""

    def ready(self) -> None: ...

    def stopping(self) -> None: ...

    async def stopped(self) -> None: ...


class GatewayServer:
    """One gateway process."""

    #: The name of its port in the log.
    service: ClassVar[str] = "gateway"

    def __init__(self, settings: GatewaySettings, group: GroupMember | None = None) -> None:
        self.settings = settings
        self._group = group
        #: Not among the others: its connections are no callers'.
        self._private = Listeners(settings.limits) if group is not None else None
        self.gateway = Gateway(settings.rules, settings.limits, settings.monitoring, settings.seed)
        self.keeper: AccessKeeper | None = None
        if settings.access is not None or settings.is_fleet_access:
            self.keeper = AccessKeeper(settings.access, internal=settings.internal)
        if group is not None:
            self.gateway.fleet.share_quotas(group.quota_ledger)
        self.gateway.is_guarded = self.keeper is not None
        if settings.internal is not None:
            self.gateway.fleet.credential = InternalCredential(settings.internal)
        if settings.upstream_token is not None:
            self.gateway.fleet.credential = OwnCredential(settings.upstream_token)
        self.gateway.times.is_on = settings.counts_latencies
        self.ports: dict[str, int] = {}
        self._recording = Recording(settings, self.gateway, lambda: self.ports)
        self._listeners = Listeners(settings.limits)
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        #: Makes what leads this gateway, once its ports are known; None: nothing does.
        self.make_link: Callable[[GatewayServer], Link] | None = None
        self._link: Link | None = None
        #: Why it had to stop of its own accord; "": it did not.
        self._failure = ""

    async def run(self) -> int:
        """Serves until told to stop; the process's exit status."""
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._stop.set)
        access_log = self._recording.access_log
        if access_log is not None and access_log.reopens_by_signal():
            loop.add_signal_handler(signal.SIGHUP, access_log.reopen)
        try:
            await self.start()
            await self._stop.wait()
        finally:
            await self.stop()
        if self._failure:
            raise StartFailed(self._failure)
        return 0

    def fail(self, reason: str) -> None:
        """It may not serve any longer: it stops in good order, and the process ends with this reason."""
        self._failure = reason
        self._stop.set()

    async def start(self) -> None:
        raise_file_limit()
        await self._recording.start()
        settings = self.settings
        gateway = self.gateway
        if self.keeper is not None:
            await self.keeper.start()
        application = self.make_application()
        page = GatewayMetricsApplication(gateway, self._listeners.snapshot, self._recording.access_log)
        metrics = WithFlights(self._recording.flights, page)
        if self._recording.flights is not None:
            self._listeners.watch_lag(self._recording.flights.events.stalled)
        accepts_late = self.make_link is not None
        await self._recording.start_export(page, is_one_of_many=self._group is not None)
        if self._group is not None:
            await self._take_place(self._group, metrics)
            accepts_late = accepts_late or not self._group.listens_at_once
        listener = await self.listen(self.service, settings.port, application, accepting=not accepts_late)
        if settings.metrics_port is not None:
            await self.listen("metrics", settings.metrics_port, metrics)
        health = None
        if settings.health_port is not None:
            checks = {LIVE: lambda: True, READY: lambda: gateway.is_ready}
            health = await self.listen("health", settings.health_port, HealthPage(checks), accepting=not accepts_late)
        await self.listen_further()
        turn = gateway.fleet.turn = listener.turn
        turn.flush_every = _FLUSH_EVERY
        if settings.upstream_tls is not None:
            gateway.fleet.upstream_tls = settings.upstream_tls
            gateway.fleet.permits_plain = settings.permits_plain
            self._tasks.append(asyncio.ensure_future(self._follow_certificates(settings.upstream_tls)))
        gateway.set_upstreams("command line", settings.upstreams)
        self._tasks.append(asyncio.ensure_future(gateway.run()))
        for upstream in settings.dns:
            dns = DnsSource(upstream, partial(gateway.set_upstreams, f"dns {upstream.address}"), gateway.is_healthy)
            self._tasks.append(asyncio.ensure_future(dns.run()))
        for path in settings.files:
            file = FileSource(path, partial(gateway.set_upstreams, f"file {path}"))
            self._tasks.append(asyncio.ensure_future(file.run()))
        if self.make_link is not None:
            self._link = self.make_link(self)
            starting = asyncio.ensure_future(self._link.start())
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not starting.done():
                starting.cancel()
                return
            try:
                await starting
            except AlreadyExists as error:
                raise StartFailed(error.message) from None
        await self._first_worker()
        await gateway.settle()
        if accepts_late:
            await self._accept(listener, self.service, settings.port)
            if health is not None:
                await self._accept(health, "health", self.ports["health"])
        # What start-up made lives as long as the process: a full collection need not walk it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTIONS)
        if self._group is None:
            log.info("ready", workers=len(gateway.fleet.healthy), compiled=IS_COMPILED, **self.ports)
        else:
            self._group.ready()

    async def _follow_certificates(self, tls: ClientTls) -> None:
        while True:
            await asyncio.sleep(_CERTIFICATES_SECONDS)
            tls.refresh()

    def make_application(self) -> Application:
        """What its port serves."""
        settings = self.settings
        return GatewayApplication(
            self.gateway, allow_file_overrides=settings.allow_file_overrides, server_name=settings.server_name
        )

    async def listen_further(self) -> None:
        """On ports of a subclass's own."""

    async def _take_place(self, group: GroupMember, metrics: Application) -> None:
        """Answer the other processes of this gateway."""
        gateway = self.gateway
        gateway.others_ready, gateway.refresh_others = group.all_ready, group.refresh_others
        if self._private is not None:
            own = ByPath({REFRESH: RefreshApplication(gateway)}, metrics)
            await self._private.add(own, None).start_unix(group.private_socket)
        group.start(lambda: gateway.is_ready_here)

    async def _first_worker(self) -> None:
        """Waits a little for a worker: a gateway is of use without one, but says so."""
        for _ in range(100):
            if any(member.serves for member in self.gateway.fleet.healthy) or self._stop.is_set():
                return
            await asyncio.sleep(0.01)
        if not self.gateway.fleet.healthy:
            log.warning("no worker is ready yet; requests are answered 503 until one is")

    async def listen(self, name: str, port: int, application: Application, *, accepting: bool = True) -> Listener:
        settings = self.settings
        # In a fleet, the controllers read its metrics port; without a key they cannot prove who they are.
        is_known = self.make_link is None or self.settings.internal is not None
        if self.keeper is not None and name != "health" and (name == self.service or is_known):
            need = needed_by if name == self.service else needed_by_page
            application = Authenticated(
                application, self.keeper, settings.limits.max_body_bytes, need, audit=self.gateway.change_audit
            )
        guarded = SameOrigin(application, settings.allow_origins)
        contexts = {self.service: settings.tls, "metrics": settings.metrics_tls}
        limits = settings.limits.of_health_checks() if name == "health" else None
        listener = self._listeners.add(guarded, contexts.get(name), limits)
        try:
            self.ports[name] = await listener.start(
                settings.host, port, reuse_port=settings.reuse_port, accepting=accepting
            )
        except OSError as error:
            raise self._cannot_listen(name, port, error) from None
        if accepting:
            log.info("listening", service=name, host=settings.host, port=self.ports[name])
        return listener

    async def _accept(self, listener: Listener, name: str, port: int) -> None:
        """The port that was reserved takes connections."""
        try:
            await listener.accept()
        except OSError as error:
            raise self._cannot_listen(name, port, error) from None
        log.info("listening", service=name, host=self.settings.host, port=self.ports[name])

    def _cannot_listen(self, name: str, port: int, error: OSError) -> StartFailed:
        flag = "--listen" if name == self.service else f"--{name}-port"
        return StartFailed(
            f"cannot listen on {self.settings.host}:{port} for {name}: {error.strerror or error}; "
            f"choose another with {flag}"
        )

    async def stop(self) -> None:
        """Finishes in-flight work within the grace period; what is left after it is cut."""
        gateway = self.gateway
        if gateway.stopping:
            return
        gateway.stopping = True
        if self._group is not None:
            self._group.stopping()
        log.info("stopping", in_flight=gateway.in_flight, grace_seconds=self.settings.exit_timeout)
        gateway.close_waiting()
        cut = await self._listeners.stop(self.settings.exit_timeout)
        if self.keeper is not None:
            await self.keeper.stop()
        if cut:
            log.warning("connections were cut after the grace period", connections=cut)
        if self._link is not None:
            await self._link.stop()
        tasks = (*self._tasks, *self._recording.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.close()
        await self._recording.stop()
        if self._group is not None and self._private is not None:
            await self._group.stopped()
            await self._private.stop(0)
        log.info("stopped")
