"""``isochrone control``: run one controller, which takes part in leader election and serves the control API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer
import uvloop

from isochrone.cli.api_client import failing_as
from isochrone.cli.processes.flags.access import (
    FLEET,
    AcceptUnsealedOption,
    AccessOption,
    FleetKeyOption,
    RequireSecureOption,
    check_exposure,
    read_access,
)
from isochrone.cli.processes.flags.audit import (
    AuditKeepOption,
    AuditKeyOption,
    AuditOption,
    AuditRedactOption,
)
from isochrone.cli.processes.flags.tls import ControlPermissiveOption, TlsClientCaOption, TlsKeyOption, read_tls
from isochrone.cli.processes.upstream_tls import (
    UpstreamCaOption,
    UpstreamCertOption,
    UpstreamKeyOption,
    UpstreamServerNameOption,
    read_upstream_tls,
)
from isochrone.console.mounting import Console, is_installed, require_installed
from isochrone.control.agents.access_following import AccessFollowing
from isochrone.control.api.application import create_app
from isochrone.control.api.callers.access_rights import AccessRights
from isochrone.control.api.callers.rights import Rights, read_rights
from isochrone.control.api.serving import serve_api
from isochrone.control.desired.applied import read_fleet
from isochrone.control.figures.collecting import FiguresCollector
from isochrone.control.leader.controller import Controller
from isochrone.control.state.foreign import check_seals
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import NO_FIELDS
from isochrone.control.state.view import View, Views
from isochrone.errors import FlagError
from isochrone.observe import logs
from isochrone.protocol.access.origins import read_origins
from isochrone.secure.access.document import load_access
from isochrone.secure.access.internal import InternalCallers, internal_callers
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.audit.audit import Audit
from isochrone.secure.audit.settings import AuditSettings, read_audit
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.secure.loopback import is_loopback
from isochrone.simulate.what_if.process import SimulatorProcess
from isochrone.stop_signals import stop_signals
from isochrone.store.base import Store, StoreUnavailable
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store, seal_of
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.contexts import ServerTls
from isochrone.wire.tls.process_tls import follow_certificates, set_process_tls

EPILOG = """
\b
Examples:
  isochrone control --store sqlite:state/fleet.db --fleet demo
  isochrone control --store etcd:http://10.0.0.1:2379 --fleet plant --name c2 --listen 0.0.0.0:8003
  isochrone control --store sqlite:state/fleet.db --fleet demo --name c2 --listen 127.0.0.1:0 --xds-listen :18000

'isochrone up' starts controllers itself. Of several controllers, one leads; the others stand by.
"""

log = structlog.get_logger(__name__)

#: Seconds between attempts to reach the store at the start.
_PAUSE = 1.0

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def control(
    store: Annotated[str, typer.Option(help="Where the fleet's state is: sqlite:PATH or etcd:URL.")],
    fleet: Annotated[str, typer.Option(help="The fleet's name.")],
    name: Annotated[str, typer.Option(help="This controller's name; no other may have it.")] = "c1",
    listen: Annotated[str, typer.Option(help="host:port of the API; port 0 picks a free one.")] = "127.0.0.1:8003",
    lease_seconds: Annotated[
        float, typer.Option(help="Seconds without a heartbeat until another controller leads.", min=1.0)
    ] = 5.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further host name that the API is reached by; addresses always are. May be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of a page that may use the API from a browser. May be repeated."),
    ] = None,
    scaler_listen: Annotated[
        str,
        typer.Option(help="host:port of the external scaler for KEDA; without it none is served.", metavar="ADDRESS"),
    ] = "",
    xds_listen: Annotated[
        str,
        typer.Option(
            help="host:port of xDS, for Envoy and gRPC clients that route by themselves; without it none is served.",
            metavar="ADDRESS",
        ),
    ] = "",
    token_file: Annotated[
        str,
        typer.Option(
            help="File with a token that requests must carry to change the fleet; without it every client may.",
            metavar="FILE",
        ),
    ] = "",
    access: AccessOption = None,
    fleet_key: FleetKeyOption = None,
    accept_unsealed: AcceptUnsealedOption = False,
    console: Annotated[
        bool | None,
        typer.Option(
            "--console/--no-console",
            help="Serve pages about the fleet at /console.",
            show_default="if NiceGUI is installed",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate: serve the API over TLS.")] = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tls_permissive: ControlPermissiveOption = False,
    upstream_ca: UpstreamCaOption = None,
    upstream_cert: UpstreamCertOption = None,
    upstream_key: UpstreamKeyOption = None,
    upstream_server_name: UpstreamServerNameOption = "",
    require_secure: RequireSecureOption = False,
    audit: AuditOption = "",
    audit_key: AuditKeyOption = "",
    audit_keep: AuditKeepOption = 0.0,
    audit_redact: AuditRedactOption = "",
    log_json: Annotated[bool, typer.Option("--log-json/--no-log-json", help="Log lines as JSON.")] = False,
) -> None:
    """Run one controller of a fleet."""
    with failing_as("control"):
        host, port = _address(listen, "--listen")
        scaler = _address(scaler_listen, "--scaler-listen") if scaler_listen else None
        xds = _address(xds_listen, "--xds-listen") if xds_listen else None
        key = read_fleet_key(fleet_key)
        file, is_fleet_access = read_access(access, store, key)
        internal = internal_callers(key)
        tls = read_tls(tls_cert, tls_key, tls_client_ca, protocols=("http/1.1",))
        upstream_tls = read_upstream_tls(upstream_ca, upstream_cert, upstream_key, upstream_server_name)
        set_process_tls(upstream_tls, permissive=tls_permissive)
        opened = open_store(store, seal=seal_of(key, accepts_unsealed=accept_unsealed))
        logs.configure(json=log_json)
        if console:
            require_installed()
        rights = _rights(token_file, access, internal)
        if require_secure:
            hosts = {each[0] for each in ((host, port), scaler, xds) if each is not None}
            check_exposure("this controller", hosts, tls=tls is not None, access=rights.needs_token, required=True)
        settings = _ControllerSettings(
            host,
            port,
            (host, *(allow_host or ())),
            read_origins(allow_origin or ()),
            scaler,
            xds,
            rights,
            is_installed() if console is None else console,
            read_audit(audit, False, audit_key, audit_keep, audit_redact, name, "controller"),
            file if internal is not None else None,
            follows_fleet=is_fleet_access or (file is not None and internal is not None),
            own_fields={"authorization": f"Bearer {internal.controller_token}"} if internal is not None else NO_FIELDS,
            tls=tls,
            followed=tuple(each for each in (tls, upstream_tls) if each is not None),
            files=(tls_cert, tls_key, (tls_client_ca,) if tls_client_ca else ()) if tls_cert and tls_key else None,
        )
        uvloop.run(_run(opened, Keys(fleet), name, settings, lease_seconds))


def _rights(token_file: str, access: Path | None, internal: InternalCallers | None) -> Rights:
    if access is None:
        return read_rights(token_file)
    if token_file:
        raise FlagError("--token-file", "nothing beside --access, whose file has tokens of its own", token_file)
    if internal is None:
        return AccessRights(AccessKeeper(access))
    # Of a fleet with a key the rules in its store count, as in all its processes; the leader writes its file there.
    keeper = AccessKeeper(None, internal=internal)
    if access != FLEET:
        keeper.adopt(load_access(access))
    return AccessRights(keeper)


def _address(text: str, flag: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise FlagError(flag, "HOST:PORT", repr(text))
    return (host or "127.0.0.1").removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True)
class _ControllerSettings:
    """What the flags of one controller say, checked: what it listens on, who may call it, and what it proves."""

    host: str
    port: int
    #: Host names that requests may use.
    names: tuple[str, ...]
    #: Origins of pages in browsers.
    origins: tuple[str, ...]
    #: The address of the scaler for KEDA; None: none is served.
    scaler: tuple[str, int] | None = None
    #: The address of xDS; None: it is not served.
    xds: tuple[str, int] | None = None
    #: Who may change the fleet.
    rights: Rights = field(default_factory=Rights)
    #: Whether the pages of the console are served.
    console: bool = False
    #: The audit log; None: nothing is recorded.
    audit: AuditSettings | None = None
    #: The file with the fleet's access rules; None: this controller writes none to the store.
    access_file: Path | None = None
    #: Whether the access rules in the store count here.
    follows_fleet: bool = False
    #: Headers that prove to workers and gateways that a controller calls.
    own_fields: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Of the API; None: it is plain.
    tls: ServerTls | None = None
    #: Contexts whose files are followed.
    followed: tuple[ServerTls | ClientTls, ...] = ()
    #: Certificate, key and authorities of clients, for grpcio's servers.
    files: tuple[Path, Path, tuple[Path, ...]] | None = None


async def _run(store: Store, keys: Keys, name: str, settings: _ControllerSettings, lease_seconds: float) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP, or until one of the tasks fails."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    mirror = Mirror(store, keys.prefix)
    stopping = asyncio.ensure_future(stop.wait())
    audit = None if settings.audit is None else Audit(settings.audit)
    try:
        if audit is not None:
            await asyncio.to_thread(audit.start)
        if not await _reach(mirror, stop):
            return
        check_seals(View(keys, mirror.entries), store.url)
        own_fields = settings.own_fields
        if settings.follows_fleet and isinstance(settings.rights, AccessRights):
            AccessFollowing(settings.rights.keeper, keys.access).take_from(mirror)
        figures = FiguresCollector(Views(keys, lambda: mirror.entries).view, own_fields=own_fields)
        controller = Controller(
            store, keys, mirror, name, read_fleet, lease_seconds, figures.history, settings.access_file, own_fields
        )
        console = Console(settings.rights, audit) if settings.console else None
        api = create_app(
            store,
            mirror,
            keys,
            lambda: controller.store_error,
            names=settings.names,
            allowed_origins=settings.origins,
            rights=settings.rights,
            further_routes=console.routes if console is not None else None,
            further_middleware=console.middleware if console is not None else (),
            history=figures.history,
            simulator=SimulatorProcess(),
            audit=audit,
            own_fields=own_fields,
        )
        if isinstance(settings.rights, AccessRights):
            await settings.rights.keeper.start()
        listening = partial(_listening, settings.host, needs_token=settings.rights.needs_token)
        parts = [
            asyncio.ensure_future(controller.run()),
            asyncio.ensure_future(figures.run()),
            asyncio.ensure_future(serve_api(api, settings.host, settings.port, listening, settings.tls)),
            asyncio.ensure_future(follow_certificates(settings.followed)),
        ]
        if console is not None:
            parts.append(asyncio.ensure_future(console.run()))
        certificate = None
        if settings.files is not None and (settings.scaler is not None or settings.xds is not None):
            from isochrone.control.grpc_listening import GrpcCertificate  # it imports gRPC

            certificate = GrpcCertificate(*settings.files)
        if settings.scaler is not None:
            from isochrone.control.scaling.keda.scaler import KedaScaler, serve_scaler  # it imports gRPC

            shown = KedaScaler(mirror, keys, own_fields=own_fields)
            parts.append(asyncio.ensure_future(serve_scaler(shown, *settings.scaler, certificate)))
        if settings.xds is not None:
            from isochrone.control.xds.server import XdsServer  # it imports gRPC

            xds = XdsServer(store, keys, mirror, name, lease_seconds)
            parts.append(asyncio.ensure_future(xds.serve(*settings.xds, certificate)))
        try:
            done, _ = await asyncio.wait((stopping, *parts), return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
    finally:
        stopping.cancel()
        await mirror.stop()
        await store.close()
        if audit is not None:
            await asyncio.to_thread(audit.stop)
        log.info("stopped")


async def _reach(mirror: Mirror, stop: asyncio.Event) -> bool:
    """Wait for the store, which may start later than its controllers. False: the process must stop."""
    said = ""
    while not stop.is_set():
        try:
            await mirror.start()
            return True
        except StoreUnavailable as error:
            if error.message != said:
                said = error.message
                log.warning("waiting for the store", error=said)
            try:
                async with asyncio.timeout(_PAUSE):
                    await stop.wait()
            except TimeoutError:
                pass
    return False


def _listening(host: str, port: int, needs_token: bool = False) -> None:
    log.info("listening", service="control", host=host, port=port)
    if not is_loopback(host) and not needs_token:
        log.warning(
            "the API is reachable from other machines and does not authenticate users: every client that reaches it "
            "can change the fleet; keep it in a private network, give it a --token-file, or listen on 127.0.0.1",
            host=host,
        )
