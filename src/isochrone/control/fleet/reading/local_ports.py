"""Finds ports of a fleet that another process of this machine holds.

``isochrone up`` checks before it starts a fleet, and the control API before it applies a file. The check binds each
port for a moment; it must never include ports that the fleet's own processes hold.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator

from isochrone.control.fleet.derived.processes import listens_on
from isochrone.control.fleet.reading.file import FleetFile
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.pool_bounds import at_largest
from isochrone.control.fleet.settings.process_ports import controller_ports, gateway_ports, worker_ports
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import FleetRecord
from isochrone.settings.problems import Path as Path_
from isochrone.settings.problems import Problem, settings_error

#: The supervisor sets it for its processes: its process number. It shows that they run on its machine.
SUPERVISOR_VARIABLE = "ISOCHRONE_SUPERVISOR"
#: Expected in a problem that may be temporary: a process that ends releases its port.
FREE = "a free port"
_TAKEN = "taken"


def fixed_ports(fleet: Fleet) -> Iterator[tuple[Path_, str, int]]:
    """Every fixed port of a fleet's processes, at its largest size: (key, host, port)."""
    yield from controller_ports(fleet)
    yield from gateway_ports(fleet)
    yield from worker_ports(at_largest(fleet))


def port_problems(wanted: Iterable[tuple[Path_, str, int]]) -> list[Problem]:
    """The ports that cannot be bound now, each with the key to change."""
    problems = []
    for key, host, port in wanted:
        reason = _reason(host, port)
        if reason == _TAKEN:
            problems.append(Problem(key, FREE, f"{host}:{port}, which another process has"))
        elif reason:
            problems.append(Problem(key, "an address of this machine", f"{host} ({reason})"))
    return problems


def _reason(host: str, port: int) -> str:
    """Why the port cannot be bound now; "": it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return _TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def check_new_ports(file: FleetFile, record: FleetRecord | None, where: str) -> None:
    """Raises ``SettingsError`` for ports that a file adds to a fleet of this machine and that another process has.

    Only where a supervisor of this machine started this controller, as it does the fleet's other processes.
    """
    if record is None or file.fleet.name != (before := fleet_of(record.spec)).name:
        return
    if os.environ.get(SUPERVISOR_VARIABLE) != str(os.getppid()):
        return
    held = {port for _, _, port in fixed_ports(before)}
    held |= {port for kept in record.kept.values() for words in kept.processes.values() for port in listens_on(words)}
    problems = port_problems(each for each in fixed_ports(file.fleet) if each[2] not in held)
    if problems:
        raise settings_error(problems, where, None)
