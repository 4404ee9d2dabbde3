"""``isochrone serve --processes N``: N workers that serve as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from isochrone.multiprocess.coordination.coordinator import CoordinatorSettings
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.running import run_group
from isochrone.multiprocess.serving import ProcessInGroup
from isochrone.multiprocess.supervision.ports import PortInUse, check, reserve
from isochrone.multiprocess.supervision.preload import preload
from isochrone.observe.logs import Settings as LogSettings
from isochrone.worker.server.failures import StartFailed
from isochrone.worker.server.server import Worker
from isochrone.worker.server.settings import ServeSettings

log = structlog.get_logger(__name__)


def run_workers(
    settings: ServeSettings, log_settings: LogSettings, count: int, report: Callable[[Exception], None]
) -> int:
    """Run until a stop signal; the exit status. ``report`` prints why a process cannot start."""
    wanted = {
        name: (settings.hosts.get(name, settings.host), port)
        for name, port in (
            ("http", settings.http_port),
            ("grpc", settings.grpc_port),
            ("metrics", settings.metrics_port),
        )
        if port is not None
    }
    try:
        ports, held = reserve(wanted, shared=bool(settings.shared_ports))
        # Before the group exists: a signal during a long load leaves nothing behind.
        shared_instances = preload(settings)
        if not settings.shared_ports:
            check(ports, held)
    except PortInUse as error:
        raise StartFailed(f"{error}; choose another with --{error.service}-port") from None
    group = ProcessGroup.create(count)
    of_process = of_one_process(settings, ports, count)
    coordinator = CoordinatorSettings(
        settings.hosts.get("metrics", settings.host),
        ports.get("metrics"),
        settings.allow_origins,
        settings.limits,
        settings.access,
        settings.tls,
    )

    async def serve(number: int, generation: int) -> int:
        audit = None if settings.audit is None else settings.audit.of_process(number)
        own = replace(of_process, process=(number - 1, count), audit=audit)
        return await Worker(own, log_settings, group=ProcessInGroup(group, number, generation)).run()

    log.info("starting processes", processes=count, instances_with_shared_weights=shared_instances, **ports)
    _say_what_is_shared(settings, of_process, count)
    return run_group(group, serve, coordinator, ports, held, settings.exit_timeout, report, (StartFailed,))


def of_one_process(settings: ServeSettings, ports: dict[str, int], count: int) -> ServeSettings:
    """The settings of each process: the reserved ports, no metrics port, its share of the response cache."""
    return replace(
        settings,
        http_port=ports.get("http"),
        grpc_port=ports.get("grpc"),
        metrics_port=None,
        shared_ports=frozenset(("http", "grpc")),
        cache_bytes=settings.cache_bytes // count,
    )


def _say_what_is_shared(settings: ServeSettings, of_process: ServeSettings, count: int) -> None:
    log.info(
        "each process has its own queues, instances, limits of connections and of buffered bytes",
        max_connections_of_all=count * settings.limits.max_connections,
        max_buffered_bytes_of_all=count * settings.limits.max_buffered_bytes,
        **({"cache_bytes_of_each": of_process.cache_bytes} if settings.cache_bytes else {}),
    )
