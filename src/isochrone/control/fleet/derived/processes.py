"""The processes of a fleet with their command lines, and what they need of their machines. Pure.

The supervisor compares them with the running processes: a process with an equal spec keeps running, one that differs is
restarted. So a command line must not contain settings that can change without a restart: models, versions and rules
reach the processes through the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from isochrone.control.fleet.derived.locations import absolute, model_keys, repositories_of, store_url
from isochrone.control.fleet.derived.tls_flags import tls_of_controllers, tls_of_gateways, tls_of_workers
from isochrone.control.fleet.settings.observability_spec import Observability, Recorder
from isochrone.control.fleet.settings.pool_bounds import largest_size
from isochrone.control.fleet.settings.process_names import controller_names, gateway_names, worker_names
from isochrone.control.fleet.settings.process_ports import EVERYWHERE, WORKER_HOST, counted_addresses, ports_of_worker
from isochrone.control.fleet.settings.quantities import split_address
from isochrone.control.fleet.settings.sections import FleetSections, NodeNeeds, Pool
from isochrone.control.fleet.settings.security_spec import Audit, Sandbox
from isochrone.control.state.needs import Needs
from isochrone.control.state.records import LOCAL
from isochrone.observe.flights.settings import OFF
from isochrone.store.etcd.address import split_password

#: Stands for the address of the machine in a command line. An engine that chooses machines replaces it at the start.
NODE_ADDRESS = "@node"
#: In place of an access file: the rules in the fleet's store.
FLEET_ACCESS = "@fleet"


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


def processes(fleet: FleetSections, directory: Path, engine: str = LOCAL) -> dict[str, ProcessSpec]:
    """Every process by name, controllers first. ``directory`` is the file's.

    On machines that an engine chooses, workers listen on the address of their machine, and a gateway that listens on
    every address registers that one.
    """
    lease = f"{fleet.store.lease_seconds:g}"
    # Without the password: every user of the machine can read command lines.
    store, _ = split_password(store_url(fleet, directory))
    key = fleet.security.key
    proof = ("--fleet-key", str(absolute(key, directory))) if key is not None else ()
    trusting = ("--accept-unsealed",) if key is not None and not fleet.security.key_required else ()
    identity = ("--store", store, "--fleet", fleet.name, "--lease-seconds", lease, *proof, *trusting)
    hosts = tuple(word for host in fleet.control.hosts for word in ("--allow-host", host))
    console = () if fleet.control.console is None else ("--console" if fleet.control.console else "--no-console",)
    file = fleet.control.token_file
    token = ("--token-file", str(absolute(file, directory))) if file is not None else ()
    rules = fleet.security.access
    access = ("--access", str(absolute(rules, directory))) if rules is not None else ()
    # With a key, the leader's file reaches every process through the store; without one, each machine has the file,
    # and workers, which could not tell a controller from others, check nobody.
    followed = ("--access", FLEET_ACCESS) if fleet.security.guards_workers else ()
    audit = _audit(fleet.security.audit, directory)
    placed = engine != LOCAL
    tls = tls_of_controllers(fleet, directory)
    specs = [
        ProcessSpec(
            name,
            "controller",
            ("control", *identity, "--name", name, "--listen", listen, *hosts, *console, *token, *access, *audit, *tls),
            needs=needs_of(fleet.control, "control", fleet.control.count, index) if placed else None,
        )
        for index, (name, listen) in enumerate(counted_addresses(controller_names(fleet), fleet.control.listen))
    ]
    for group, gateway in fleet.gateways.items():
        for index, (name, listen) in enumerate(counted_addresses(gateway_names(fleet, group), gateway.listen)):
            metrics = gateway.metrics_port + index if gateway.metrics_port > 0 else gateway.metrics_port
            needs = needs_of(gateway, group, gateway.count, index, gateway.processes) if placed else None
            requests = ("--audit-requests",) if fleet.security.audit.requests else ()
            shared = (*identity, *_recorder(fleet), *(followed or access), *audit, *requests)
            shared += tls_of_gateways(fleet, gateway, directory)
            specs += _gateways(fleet, name, listen, metrics, gateway.processes, shared, needs)
    of_workers = (*identity, *_recorder(fleet), *followed, *audit, *tls_of_workers(fleet, directory))
    for pool in fleet.pools:
        specs += _workers(fleet, pool, directory, of_workers, placed)
    return {spec.name: spec for spec in specs}


def observing(section: Observability, name: str, role: Literal["gateway", "worker"]) -> list[str]:
    """The flags of a process's traces and of its access log."""
    words: list[str] = []
    tracing, access = section.tracing, section.access_log
    if tracing.otlp:
        rate = round(1 / tracing.sample) if tracing.sample else 0
        settings = ["mode=opentelemetry", f"rate={rate}", f"opentelemetry,protocol={tracing.protocol}"]
        settings += [f"opentelemetry,url={tracing.otlp}", f"opentelemetry,resource=service.instance.id={name}"]
        settings += ["level=TIMESTAMPS"] if role == "worker" else []
        words += [f"--trace-config={setting}" for setting in settings]
    if access.share is not None:
        words.append(f"--access-log={access.share:g}")
        words += [f"--access-log-file={access.directory}/{name}.access.log"] if access.directory else []
    return words


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
    fleet: FleetSections,
    name: str,
    listen: str,
    metrics: int,
    count: int,
    identity: tuple[str, ...],
    needs: Needs | None,
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
        words += observing(fleet.observability, own, "gateway")
        yield ProcessSpec(own, "gateway", tuple(words), needs=needs)


def _workers(
    fleet: FleetSections, pool: str, directory: Path, identity: tuple[str, ...], placed: bool
) -> Iterator[ProcessSpec]:
    spec = fleet.pools[pool]
    repositories = tuple(str(path) for path in repositories_of(fleet, pool, directory))
    for index, name in enumerate(worker_names(fleet, pool)):
        http, grpc, metrics = ports_of_worker(spec, index)
        host = NODE_ADDRESS if placed else WORKER_HOST
        words = ["serve", *repositories, "--host", host, "--http-port", str(http), "--grpc-port", str(grpc)]
        words += ["--metrics-port", str(metrics), "--model-control-mode", "explicit", *identity]
        words += ["--name", name, "--pool", pool]
        words += _given("--tier", spec.tier) + _given("--device", spec.device)
        words += ["--memory", str(spec.memory)] if spec.memory else []
        words += _given("--region", spec.region)
        words += _sandbox(fleet)
        for file in fleet.security.signatures.trust:
            words += ["--require-signatures", str(absolute(file, directory))]
        for source in model_keys(fleet, directory):
            words += ["--model-key", source]
        words += ["--require-encryption"] if fleet.security.encryption.required else []
        words += observing(fleet.observability, name, "worker")
        # Of an autoscaled pool, the group has room for all that it may have: a new size changes no other worker.
        needs = needs_of(spec, pool, largest_size(spec) + spec.warm, index) if placed else None
        yield ProcessSpec(name, "worker", (*words, *spec.arguments), pool, needs)


def _sandbox(fleet: FleetSections) -> list[str]:
    """Flags of the sandbox of python models."""
    sandbox = fleet.security.sandbox or Sandbox()
    if not fleet.security.confines:
        return ["--no-sandbox"] if fleet.security.guards_workers else []
    words = ["--sandbox", *(["--sandbox-best-effort"] if sandbox.best_effort else [])]
    words += ["--sandbox-memory", str(sandbox.memory)] if sandbox.memory else []
    for grant in sandbox.allow:
        words += ["--sandbox-allow", grant]
    for name in sorted(name for name, model in fleet.models.items() if model.trust):
        words += ["--trust-model", name]
    return words


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


def _recorder(fleet: FleetSections) -> list[str]:
    """Flags of the flight recorder; none where it is as processes have it anyway."""
    recorder = fleet.observability.recorder
    words = (
        [] if recorder == Recorder() else ["--flight-recorder", str(recorder.requests) if recorder.requests else OFF]
    )
    return words + _given("--dump-flights", recorder.dump)


def _audit(audit: Audit, directory: Path) -> tuple[str, ...]:
    """Flags of the audit log. Workers record changes alone: each request is recorded where it came in."""
    if not audit.directory:
        return ()
    words = ["--audit", audit.directory]
    words += ["--audit-key", str(absolute(audit.key, directory))] if audit.key is not None else []
    words += ["--audit-keep", f"{audit.keep_days:g}"] if audit.keep_days else []
    rules = ",".join(f"{field}={how}" for field, how in audit.redact.rules)
    return (*words, *_given("--audit-redact", rules))


def _given(flag: str, value: str) -> list[str]:
    return [flag, value] if value else []
