"""``isochrone gateway --processes N``: N gateways that serve as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from isochrone.errors import IsochroneError
from isochrone.gateway.control_calls.refresh import REFRESH
from isochrone.gateway.monitoring.monitor import MonitorRules
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.server.server import GatewayServer, Link
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.gateway.traffic.quota_ledger import QuotaLedger
from isochrone.multiprocess.coordination.coordinator import CoordinatorSettings
from isochrone.multiprocess.group.board import LISTENING
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.private_calls import call_json, gather
from isochrone.multiprocess.quota_memory import QuotaMemory
from isochrone.multiprocess.running import run_group
from isochrone.multiprocess.serving import ProcessInGroup
from isochrone.multiprocess.supervision.ports import PortInUse, reserve

log = structlog.get_logger(__name__)

#: Seconds that another process has beyond those of its workers.
_REFRESH_SECONDS = 1.0
#: Makes the link of process N to a fleet.
MakeLink = Callable[[int, int], Callable[[GatewayServer], Link]]


class GatewayInGroup(ProcessInGroup):
    """A gateway's process."""

    #: Seconds that its workers have to say what they serve.
    index_timeout = MonitorRules().index_timeout

    def __init__(self, group: ProcessGroup, number: int, generation: int, ledger: QuotaLedger) -> None:
        super().__init__(group, number, generation)
        self.quota_ledger = ledger

    async def refresh_others(self) -> None:
        """The others' views of the workers are refreshed; one that does not respond does not matter."""
        others = [number for number in self.group.board.those(LISTENING) if number != self.number]
        target, seconds = REFRESH.decode(), self.index_timeout + _REFRESH_SECONDS
        answers = await gather(
            {number: call_json(self.group.socket(number), "POST", target, seconds=seconds) for number in others}
        )
        for number, answer in answers.items():
            if isinstance(answer, IsochroneError):
                log.warning("a process did not refresh its view of the workers", number=number, error=str(answer))


def run_gateways(
    settings: GatewaySettings, count: int, make_link: MakeLink | None, report: Callable[[Exception], None]
) -> int:
    """Run until a stop signal; the exit status. ``report`` prints why a process cannot start.

    ``make_link`` takes the number of a process and the port. In a fleet every process is a gateway of its own, and its
    controller asks each for its evaluations: so each has a metrics port beside the one of all.
    """
    wanted = {"gateway": (settings.host, settings.port)}
    if settings.metrics_port is not None:
        wanted["metrics"] = settings.host, settings.metrics_port
    try:
        ports, held = reserve(wanted, shared=settings.reuse_port)
    except PortInUse as error:
        flag = "--listen" if error.service == "gateway" else "--metrics-port"
        raise StartFailed(f"{error}; choose another with {flag}") from None
    group = ProcessGroup.create(count)
    memory = QuotaMemory(count, group.quota_lock_file)
    of_process = replace(
        settings,
        port=ports["gateway"],
        metrics_port=0 if make_link is not None and settings.metrics_port is not None else None,
        reuse_port=True,
    )
    coordinator = CoordinatorSettings(
        settings.host,
        ports.get("metrics"),
        settings.allow_origins,
        settings.limits,
        settings.access,
        settings.metrics_tls,
    )

    async def serve(number: int, generation: int) -> int:
        own = of_process if settings.seed is None else replace(of_process, seed=settings.seed + number - 1)
        if own.audit is not None:
            own = replace(own, audit=own.audit.of_process(number))
        process = GatewayInGroup(group, number, generation, memory.ledger(number))
        process.index_timeout = settings.monitoring.index_timeout
        server = GatewayServer(own, process)
        if make_link is not None:
            server.make_link = make_link(number, ports["gateway"])
        return await server.run()

    log.info("starting processes", processes=count, **ports)
    log.info("each process has its own view of the workers, retry budgets, breakers and limits of connections")
    expected = (StartFailed, IsochroneError, OSError)
    return run_group(group, serve, coordinator, ports, held, settings.exit_timeout, report, expected)
