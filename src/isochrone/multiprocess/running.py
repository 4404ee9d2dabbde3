"""Runs a server of several processes: the supervisor in this process, everything else in those it forks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog
import uvloop

from isochrone.multiprocess.coordination.coordinator import CoordinatorSettings, coordinate
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.supervision.child import name_in_logs
from isochrone.multiprocess.supervision.restarts import START_FAILED
from isochrone.multiprocess.supervision.supervisor import Supervisor

log = structlog.get_logger(__name__)


def run_group(
    group: ProcessGroup,
    serve: Callable[[int, int], Coroutine[Any, Any, int]],
    coordinator: CoordinatorSettings,
    ports: Mapping[str, int],
    reserved: Sequence[socket.socket],
    exit_timeout: float,
    report: Callable[[Exception], None],
    expected: tuple[type[Exception], ...],
) -> int:
    """Run until a stop signal; the exit status. The group and the reserved ports are gone then.

    ``serve`` takes a process's number and generation; the ``expected`` errors that it raises go to ``report``.
    """

    def run_process(number: int, generation: int) -> int:
        name_in_logs(number)
        try:
            return uvloop.run(serve(number, generation))
        except expected as error:
            report(error)
            return START_FAILED

    def run_coordinator() -> int:
        name_in_logs("coordinator")
        return uvloop.run(coordinate(group, coordinator))

    def announce() -> None:
        log.info("ready", processes=group.count, **ports)

    try:
        return Supervisor(group, run_process, run_coordinator, announce, exit_timeout).run()
    finally:
        group.remove()
        for each in reserved:
            each.close()
