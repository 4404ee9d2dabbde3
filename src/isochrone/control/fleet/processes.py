"""The processes of a fleet with their command lines, and what they need of their machines. Pure.

The supervisor compares them with the running processes: a process with an equal spec keeps running, one that differs is
restarted. So a command line must not contain settings that can change without a restart: models, versions and rules
reach the processes through the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from isochrone.control.fleet.quantities import join_address, split_address
from isochrone.control.fleet.sections import FleetSections, NodeNeeds, Pool
from isochrone.control.state.needs import Needs
from isochrone.control.state.records import BY_ADDRESS, LOCAL, WorkerRecord
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream
from isochrone.models.sources.locations import Location, is_url, parse_location
from isochrone.store.etcd.address import split_password

#: Flags of ``isochrone serve`` that a pool's ``arguments`` must not name.
OWN_FLAGS = frozenset(
    (
        "--http-port",
        "--grpc-port",
        "--metrics-port",
        "--model-control-mode",
        "--model-repository",
        "--load-model",
        "--store",
        "--fleet",
        "--name",
        "--pool",
        "--tier",
        "--device",
        "--memory",
        "--region",
        "--lease-seconds",
    )
)
#: Gateways of the same machine use the workers, unless a pool's arguments name another --host.
_WORKER_HOST = "127.0.0.1"
_PORTS_PER_WORKER = 3
#: Stands for the address of the machine in a command line. An engine that chooses machines replaces it at the start.
NODE_ADDRESS = "@node"
#: Addresses that listen on every interface.
EVERYWHERE = frozenset(("0.0.0.0", "::", ""))

_Step = str | int


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process. Equal specs need no restart."""

    name: str
    role: Literal["controller", "gateway", "worker"]
    #: Arguments of the ``isochrone`` command.
    arguments: tuple[str, ...]
    #: Of a worker: its pool.
    pool: str = ""
    #: None: the engine has one machine.
    needs: Needs | None = None


@dataclass(frozen=True, slots=True)
class OutsideServer:
    """A server that runs already: the fleet uses it, and does not start it."""

    name: str
    pool: str
    upstream: Upstream
    kind: str


def processes(fleet: FleetSections, directory: Path, engine: str = LOCAL) -> dict[str, ProcessSpec]:
    """Every process by name, controllers first. ``directory`` is the file's.

    On machines that an engine chooses, workers listen on the address of their machine, and a gateway that listens on
    every address registers that one.
    """
    lease = f"{fleet.store.lease_seconds:g}"
    # Without the password: every user of the machine can read command lines.
    store, _ = split_password(store_url(fleet, directory))
    identity = ("--store", store, "--fleet", fleet.name, "--lease-seconds", lease)
    hosts = tuple(word for host in fleet.control.hosts for word in ("--allow-host", host))
    placed = engine != LOCAL
    specs = [
        ProcessSpec(
            name,
            "controller",
            ("control", *identity, "--name", name, "--listen", listen, *hosts),
            needs=needs_of(fleet.control, "control", fleet.control.count, index) if placed else None,
        )
        for index, (name, listen) in enumerate(_counted(controller_names(fleet), fleet.control.listen))
    ]
    for group, gateway in fleet.gateways.items():
        for index, (name, listen) in enumerate(_counted(gateway_names(fleet, group), gateway.listen)):
            metrics = gateway.metrics_port + index if gateway.metrics_port > 0 else gateway.metrics_port
            needs = needs_of(gateway, group, gateway.count, index, gateway.processes) if placed else None
            specs += _gateways(name, listen, metrics, gateway.processes, identity, needs)
    for pool in fleet.pools:
        specs += _workers(fleet, pool, directory, identity, placed)
    return {spec.name: spec for spec in specs}


def needs_of(section: NodeNeeds, group: str, count: int, index: int, processes_per_share: int = 1) -> Needs:
    """``count``: members of the group, each of which has one machine; ``index``: the member."""
    needs = Needs(
        section.cpus,
        section.gpus if isinstance(section, Pool) else 0.0,
        tuple(sorted(section.resources.items())) if isinstance(section, Pool) else (),
        tuple(sorted(section.node_labels.items())),
        section.placement,
    )
    # Processes that share a port must share a machine; others are placed one by one if nothing depends on the group.
    if section.placement in ("any", "spread") and processes_per_share == 1:
        return needs
    return replace(needs, group=group, shares=count, share=index, processes_per_share=processes_per_share)


def _gateways(
    name: str, listen: str, metrics: int, count: int, identity: tuple[str, ...], needs: Needs | None
) -> Iterator[ProcessSpec]:
    """One process, or several that share its port. To the fleet each of them is a gateway: a strict switch requires an
    acknowledgement from every process that admits requests."""
    for number in range(1, count + 1):
        own = name if count == 1 else f"{name}.{number}"
        # Two processes cannot share a metrics port: only the first has the configured one.
        page = metrics if number == 1 or metrics < 0 else 0
        words = ["gateway", "--listen", listen, "--metrics-port", str(page), *identity, "--name", own]
        words += ["--advertise", NODE_ADDRESS] if needs is not None and split_address(listen)[0] in EVERYWHERE else []
        words += ["--reuse-port"] if count > 1 else []
        yield ProcessSpec(own, "gateway", tuple(words), needs=needs)


def _workers(
    fleet: FleetSections, pool: str, directory: Path, identity: tuple[str, ...], placed: bool
) -> Iterator[ProcessSpec]:
    spec = fleet.pools[pool]
    repositories = tuple(str(path) for path in repositories_of(fleet, pool, directory))
    for index, name in enumerate(worker_names(fleet, pool)):
        http, grpc, metrics = _ports_of_worker(spec, index)
        host = NODE_ADDRESS if placed else _WORKER_HOST
        words = ["serve", *repositories, "--host", host, "--http-port", str(http), "--grpc-port", str(grpc)]
        words += ["--metrics-port", str(metrics), "--model-control-mode", "explicit", *identity]
        words += ["--name", name, "--pool", pool]
        words += _given("--tier", spec.tier) + _given("--device", spec.device)
        words += ["--memory", str(spec.memory)] if spec.memory else []
        words += _given("--region", spec.region)
        needs = needs_of(spec, pool, spec.workers, index) if placed else None
        yield ProcessSpec(name, "worker", (*words, *spec.arguments), pool, needs)


def listens_on(arguments: Sequence[str]) -> tuple[int, ...]:
    """The fixed ports on a worker's command line, as ``--http-port 8000`` or ``--http-port=8000``."""
    flags = ("--http-port", "--grpc-port", "--metrics-port")
    given = [*pairwise(arguments), *(word.split("=", 1) for word in arguments if "=" in word)]
    # A value that looks like a flag (a region called --http-port) is not followed by a number.
    ports = (int(value) for flag, value in given if flag in flags and value.isdecimal())
    return tuple(port for port in ports if port)


def surge_of(worker: ProcessSpec) -> ProcessSpec:
    """A second worker for a pool of one, which serves while the first is replaced: on free ports, as POOL-surge."""
    name = f"{worker.pool}-surge"
    values = {"--name": name}
    if worker.needs is None or not worker.needs.own_address:
        values |= {"--http-port": "0", "--grpc-port": "0", "--metrics-port": "0"}
    words = list(worker.arguments)
    for index, word in enumerate(words[:-1]):
        if word in values:
            words[index + 1] = values[word]
    return ProcessSpec(name, "worker", tuple(words), worker.pool, worker.needs.alone if worker.needs else None)


def _given(flag: str, value: str) -> list[str]:
    return [flag, value] if value else []


def outside_servers(fleet: FleetSections) -> dict[str, OutsideServer]:
    """The servers of all ``addresses``, by name. The name comes from the address, so that it is stable."""
    found = {}
    for pool, spec in fleet.pools.items():
        for text in spec.addresses:
            upstream = parse_upstream(text)
            name = f"{pool}-{upstream.host}-{upstream.port}"
            found[name] = OutsideServer(name, pool, upstream, spec.kind)
    return found


def server_records(fleet: FleetSections) -> tuple[WorkerRecord, ...]:
    """The records of outside servers, which the leader registers."""
    return tuple(
        WorkerRecord(
            name=server.name,
            host=server.upstream.host,
            port=server.upstream.port,
            grpc_port=server.upstream.grpc_port,
            metrics_port=server.upstream.metrics_port,
            pool=server.pool,
            tier=server.upstream.tier or fleet.pools[server.pool].tier,
            device=server.upstream.device or fleet.pools[server.pool].device,
            region=server.upstream.region or fleet.pools[server.pool].region,
            memory=fleet.pools[server.pool].memory,
            kind=server.kind,
            incarnation=BY_ADDRESS,
        )
        for server in outside_servers(fleet).values()
    )


def store_url(fleet: FleetSections, directory: Path) -> str:
    """The store's URL with an absolute path, independent of a process's working directory."""
    scheme, _, rest = fleet.store.url.partition(":")
    return f"sqlite:{absolute(rest, directory)}" if scheme == "sqlite" else fleet.store.url


def repositories_of(fleet: FleetSections, pool: str, directory: Path) -> tuple[Location, ...]:
    """The model repositories of a pool's workers: its own or the fleet's, and those of its models' sources."""
    found = [location(text, directory) for text in fleet.pools[pool].repository or fleet.repository]
    for name, model in fleet.models.items():
        if model.source is not None and pool in fleet.pools_of(name):
            found.append(location(model.source, directory).parent)
    return tuple(dict.fromkeys(found))


def repositories_by_worker(fleet: FleetSections, directory: Path) -> dict[str, tuple[str, ...]]:
    """The repositories of every worker that is started here."""
    return {
        name: tuple(map(str, repositories_of(fleet, pool, directory)))
        for pool in fleet.pools
        for name in worker_names(fleet, pool)
    }


def location(text: str, directory: Path) -> Location:
    """A repository of the file: an absolute path, or a URL."""
    return parse_location(text) if is_url(text) else absolute(text, directory)


def absolute(path: str, directory: Path) -> Path:
    """A path of the file. Links are not resolved: a deployment may change their targets."""
    return Path(os.path.abspath(directory / Path(path).expanduser()))


def controller_names(fleet: FleetSections) -> list[str]:
    return [f"control-{number}" for number in range(1, fleet.control.count + 1)]


def gateway_names(fleet: FleetSections, group: str) -> list[str]:
    """``gw``; or ``gw-1``, ``gw-2`` where there are several."""
    count = fleet.gateways[group].count
    return [group] if count == 1 else [f"{group}-{number}" for number in range(1, count + 1)]


def gateway_group(process: str, fleet: FleetSections) -> str:
    """The group of a gateway's process. ``gw-2.1`` is the first process of the second gateway of ``gw``."""
    gateway = process.partition(".")[0]
    return gateway if gateway in fleet.gateways else gateway.rpartition("-")[0]


def worker_names(fleet: FleetSections, pool: str) -> list[str]:
    return [f"{pool}-{number}" for number in range(1, fleet.pools[pool].workers + 1)]


def names_of(fleet: FleetSections) -> Iterator[tuple[tuple[_Step, ...], list[str]]]:
    """The names of all processes, with the key that each comes from."""
    yield ("control",), controller_names(fleet)
    for group in fleet.gateways:
        yield ("gateways", group), gateway_names(fleet, group)
    for pool in fleet.pools:
        yield ("pools", pool), worker_names(fleet, pool)


def _counted(names: list[str], listen: str) -> Iterator[tuple[str, str]]:
    """Each name with its address; ports count up, and 0 stays 0."""
    host, port = split_address(listen)
    for index, name in enumerate(names):
        yield name, join_address(host, port + index if port else 0)


# Fixed ports, each with the key that it comes from.


def controller_ports(fleet: FleetSections) -> Iterator[tuple[tuple[_Step, ...], str, int]]:
    for _, listen in _counted(controller_names(fleet), fleet.control.listen):
        host, port = split_address(listen)
        if port:
            yield ("control", "listen"), host, port


def gateway_ports(fleet: FleetSections) -> Iterator[tuple[tuple[_Step, ...], str, int]]:
    for group, gateway in fleet.gateways.items():
        for index, (_, listen) in enumerate(_counted(gateway_names(fleet, group), gateway.listen)):
            host, port = split_address(listen)
            if port:
                yield ("gateways", group, "listen"), host, port
            if gateway.metrics_port > 0:
                yield ("gateways", group, "metrics_port"), host, gateway.metrics_port + index


def worker_ports(fleet: FleetSections) -> Iterator[tuple[tuple[_Step, ...], str, int]]:
    for pool, spec in fleet.pools.items():
        for index in range(spec.workers):
            for port in _ports_of_worker(spec, index):
                if port:
                    yield ("pools", pool, "first_port"), _WORKER_HOST, port


def _ports_of_worker(pool: Pool, index: int) -> tuple[int, int, int]:
    """HTTP, gRPC, metrics."""
    first = pool.first_port + _PORTS_PER_WORKER * index
    return (first, first + 1, first + 2) if pool.first_port else (0, 0, 0)
