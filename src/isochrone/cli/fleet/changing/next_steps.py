"""The commands that ``isochrone up`` suggests for a fleet that has just started; they work as printed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from isochrone.cli.console import counted
from isochrone.cli.last_fleet import LastFleet
from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.reading.catalog import available_versions
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.process_ports import EVERYWHERE
from isochrone.control.fleet.settings.quantities import split_address
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.view import View
from isochrone.errors import IsochroneError

#: The pages of the console, at the controllers' addresses.
CONSOLE_PATH = "/console/"
#: Default addresses of commands.
_USUAL_GATEWAYS = frozenset(("127.0.0.1:8000", "0.0.0.0:8000", "localhost:8000"))
_USUAL_CONTROLLERS = frozenset(("127.0.0.1:8003", "0.0.0.0:8003", "localhost:8003"))


def next_steps(
    view: View, record: FleetRecord, logs: str, last: LastFleet | None, controller_host: str = ""
) -> list[str]:
    """Lines for a terminal. ``last``: the fleet that commands use without ``--api`` and ``--url``. ``controller_host``:
    of the first controller, if an engine chose its machine."""
    fleet = fleet_of(record.spec)
    gateways = [f"{_reachable(each.host)}:{each.port}" for each in view.gateways.values()]
    scheme = "https" if any(each.callers_tls for each in view.gateways.values()) else "http"
    gateway = _usual_first(gateways, _USUAL_GATEWAYS)
    is_gateway_found = last.gateway == f"{scheme}://{gateway}" if last and last.gateway else gateway in _USUAL_GATEWAYS
    url = f" --url {scheme}://{gateway}" if gateway and not is_gateway_found else ""
    if url and scheme == "https":
        url += _certificates(fleet, Path(record.directory))
    controller = controller_url(fleet, controller_host)
    is_found = last.api == controller if last and last.api else fleet.control.listen in _USUAL_CONTROLLERS
    api = f" --api {controller}" if not is_found else ""
    # A port that a controller picked is only in its log.
    is_known = not fleet.control.listen.endswith(":0")
    lines = ["", f"Fleet {fleet.name} is up: {_count(view)}."]
    if gateway:
        lines += [f"Any Triton client can use it: {scheme}://{gateway} (HTTP and gRPC)."]
    lines += ["", "Try:"]
    if gateway and (model := _first_model(view)):
        lines.append(f"  isochrone infer {model}{url}")
    if is_known and (changes := _newer(view, fleet, Path(record.directory))):
        words = " ".join(f"{model}={version}" for model, version in changes.items())
        lines += [f"  isochrone rollout start {words}{api}", f"  isochrone rollout rollback {next(iter(changes))}{api}"]
    if is_known:
        lines += [f"  isochrone status{api}", f"  isochrone top{api}"]
    else:
        lines.append("  isochrone status --api http://HOST:PORT    (control.listen has port 0: see a controller's log)")
    if is_known and has_console(fleet):
        lines += ["", f"Console: {controller}{CONSOLE_PATH}"]
    lines += ["", f"Logs: isochrone logs, or {logs}. Ctrl-C stops everything and keeps the state."]
    return lines


def _certificates(fleet: Fleet, directory: Path) -> str:
    """The flags of a caller."""
    tls = fleet.security.tls
    files = [("--ca", tls.ca)]
    if tls.client_ca is not None:
        files += [("--cert", tls.cert), ("--key", tls.key)]
    return "".join(f" {flag} {absolute(file, directory)}" for flag, file in files if file is not None)


def has_console(fleet: Fleet) -> bool:
    """Whether the controllers serve it: on another machine, NiceGUI may be there or not, and nothing is promised."""
    return fleet.control.console or (fleet.control.console is None and find_spec("nicegui") is not None)


def last_fleet_of(
    fleet: Fleet, state: Path, directory: Path, ray: str = "", gateway: str = "", controller_host: str = ""
) -> LastFleet:
    """The record for commands without ``--api`` and ``--url``. ``state``: the directory of its logs and its lock.
    ``directory``: of its file. ``ray``: address of the Ray cluster.
    ``gateway``: URL of a gateway, if an engine chose its machine."""
    api = controller_url(fleet, controller_host)
    tls = fleet.security.tls
    ca, cert, key = ("" if each is None else str(absolute(each, directory)) for each in (tls.ca, tls.cert, tls.key))
    first = gateway or gateway_url(fleet)
    return LastFleet(fleet.name, api, str(state.resolve()), first, ray, ca, cert, key, tls.server_name)


def gateway_url(fleet: Fleet) -> str:
    """URL of the first gateway; "": there is none, or it picks its port."""
    for gateway in fleet.gateways.values():
        host, port = split_address(gateway.listen)
        is_tls = fleet.security.tls.cert is not None and gateway.tls
        return f"{'https' if is_tls else 'http'}://{_reachable(host)}:{port}" if port else ""
    return ""


def controller_url(fleet: Fleet, machine: str = "") -> str:
    """URL of the first controller; "": it picks its port. ``machine``: its address, if an engine chose it."""
    host, port = split_address(fleet.control.listen)
    scheme = "http" if fleet.security.tls.cert is None else "https"
    return f"{scheme}://{_reachable(machine if machine and host in EVERYWHERE else host)}:{port}" if port else ""


def _count(view: View) -> str:
    workers, gateways = len(view.workers), len(view.gateways)
    models = ", ".join(f"{name} {each.version}" for name, each in sorted(view.assignments.items()))
    return f"{counted(gateways, 'gateway')}, {counted(workers, 'worker')}, serving {models or 'no model yet'}"


def _first_model(view: View) -> str:
    """An ensemble if there is one, because its timing shows more."""
    models = view.assignments
    return next((name for name in models if models[name].stages), next(iter(models), ""))


def _newer(view: View, fleet: Fleet, directory: Path) -> dict[str, str]:
    """A possible change to newer versions: of one model, and of those that change with it."""
    versions: dict[str, str] = {}
    for name, assignment in view.assignments.items():
        try:
            there = available_versions(fleet, name, directory)
        except IsochroneError:
            continue
        if there and there[-1] > int(assignment.version):
            versions[name] = str(there[-1])
    if not versions:
        return {}
    first = _first_model(view) if _first_model(view) in versions else next(iter(versions))
    together = [first, *fleet.of(first).changes_with]
    together += [name for name in versions if first in fleet.of(name).changes_with]
    return {name: versions[name] for name in dict.fromkeys(together) if name in versions}


def _usual_first(addresses: list[str], usual: frozenset[str]) -> str:
    return next((address for address in addresses if address in usual), addresses[0] if addresses else "")


def _reachable(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
