"""Plan steps that take something away from the fleet's clients: models, pools, addresses. Pure.

Each needs the user's agreement, or is rejected with a way to avoid the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.outside_servers import outside_servers
from isochrone.control.fleet.derived.processes import listens_on
from isochrone.control.fleet.planning.differences import listed
from isochrone.control.fleet.planning.steps import INTERRUPT, REFUSE, RETIRE, Step
from isochrone.control.fleet.settings.pool_bounds import at_largest
from isochrone.control.fleet.settings.process_names import gateway_group, names_of, worker_names
from isochrone.control.fleet.settings.process_ports import controller_ports, gateway_ports, worker_ports
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.assignment import NO_PLACEMENTS
from isochrone.control.state.records import Assignment, KeptPool, PlacementRecord


def dropped_pools(before: Fleet, after: Fleet) -> list[str]:
    """Pools that ran something and run nothing in the new file."""
    return [pool for pool in before.pools if runs(before, pool) and not runs(after, pool)]


def runs(fleet: Fleet, pool: str) -> bool:
    """Whether a fleet has workers or servers in a pool, or may get workers from the autoscaler."""
    spec = fleet.pools.get(pool)
    return spec is not None and spec.may_serve


def retired_pools(
    before: Fleet, after: Fleet, committed: Mapping[str, Assignment], kept: Mapping[str, KeptPool]
) -> Iterator[Step]:
    """``kept``: pools that earlier files dropped and that still serve."""
    found: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
    members = {path[1]: names for path, names in names_of(before) if path[0] == "pools"}
    for pool in dropped_pools(before, after):
        addresses = [server.upstream.address for server in outside_servers(before).values() if server.pool == pool]
        found[pool] = (members[pool], addresses)
    for pool, running in kept.items():
        if not runs(after, pool):
            found[pool] = (list(running.processes), [server.address for server in running.servers])
    for pool, (workers, servers) in found.items():
        detail = f"{listed(workers)} stop" if workers else f"no longer use {listed(servers)}" if servers else "gone"
        models = sorted(name for name, assignment in committed.items() if pool in assignment.pools)
        if models:
            detail += f", once {listed(models)} {'is' if len(models) == 1 else 'are'} no longer served by it"
        yield Step(RETIRE, "pool", pool, detail, processes=tuple(workers))


def crowded_pools(
    before: Fleet,
    after: Fleet,
    committed: Mapping[str, Assignment],
    placements: Mapping[str, PlacementRecord] = NO_PLACEMENTS,
) -> Iterator[Step]:
    """Pools that are not planned any more: each of their workers would load all of their models. A pool that an earlier
    file dropped, and that still serves, has its placement record."""
    planned = {*placements, *(pool for pool, spec in before.pools.items() if spec.is_planned)}
    for pool, spec in after.pools.items():
        if spec.is_planned or not spec.memory or pool not in planned:
            continue
        sizes = {name: each.memory for name, each in committed.items() if pool in each.pools}
        sizes |= {name: after.of(name).memory for name in after.models if pool in after.pools_of(name)}
        if (total := sum(sizes.values())) > spec.memory:
            detail = (
                f"its {len(sizes)} models take {_mebibytes(total)}, and each of its workers has "
                f"{_mebibytes(spec.memory)}; keep it planned, or give the pool fewer models or more memory first"
            )
            yield Step(REFUSE, "pool", f"pools.{pool}.replicas", detail)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def lost_replicas(
    before: Fleet, after: Fleet, committed: Mapping[str, Assignment], placements: Mapping[str, PlacementRecord]
) -> Iterator[Step]:
    """Models of planned pools whose workers all stop: they are served again once they are loaded elsewhere."""
    for pool, placement in placements.items():
        if pool not in before.pools or pool not in after.pools or not runs(after, pool):
            continue
        lost = {
            model: names
            for model, names in placement.replicas.items()
            if model in committed and names and not _stays(model, before, after, committed[model], placements)
        }
        if lost:
            stopping = sorted({name for names in lost.values() for name in names})
            # Not a drain: gateways send nothing to a drained worker, so that it interrupts the same models.
            detail = (
                f"{listed(stopping)} {'stops' if len(stopping) == 1 else 'stop'} with the only replicas of "
                f"{listed(sorted(lost))}; to avoid that, apply min_replicas: 2 first"
            )
            yield Step(INTERRUPT, "pool", pool, detail, processes=tuple(stopping))


def _stays(
    model: str, before: Fleet, after: Fleet, served: Assignment, placements: Mapping[str, PlacementRecord]
) -> bool:
    """Whether a replica of a model is on a worker that does not stop, in any of its pools."""
    for pool in served.pools:
        if pool not in placements:
            # Every worker of such a pool has the model.
            if runs(after, pool):
                return True
            continue
        workers = frozenset(placements[pool].replicas.get(model, ()))
        was = frozenset(worker_names(before, pool)) if pool in before.pools else frozenset[str]()
        stay = frozenset(worker_names(after, pool)) if pool in after.pools else frozenset[str]()
        if workers - (was - stay):
            return True
    return False


def losses_of_scaling(
    before: Fleet, pool: str, workers: int, registered: Collection[str], drained: Collection[str]
) -> Iterator[Step]:
    """Scaling that leaves no working worker: workers are stopped from the highest number down, and those that stay may
    be dead or drained."""
    names = worker_names(before, pool)
    kept = workers + before.pools[pool].warm if workers else 0
    stay, go = names[:kept], names[kept:]
    lost = [name for name in go if name in registered and name not in drained]
    if not stay or not lost or any(name in registered and name not in drained for name in stay):
        return
    idle = [name for name in stay if name in drained]
    way = f"; {listed(idle)} {'is' if len(idle) == 1 else 'are'} drained: isochrone undrain {idle[0]}" if idle else ""
    detail = f"{listed(lost)} {'stops' if len(lost) == 1 else 'stop'}, and no worker that stays takes requests{way}"
    yield Step(INTERRUPT, "pool", pool, detail, processes=tuple(lost))


def retired_models(committed: Mapping[str, Assignment], after: Mapping[str, str]) -> Iterator[Step]:
    """``after``: the models of the file, with their versions."""
    for name in sorted(committed.keys() - after.keys()):
        yield Step(RETIRE, "model", name, "no longer served")


def lost_addresses(before: Fleet, was_in: Path, after: Fleet, directory: Path, engine: str) -> Iterator[Step]:
    """Addresses of gateways that no process answers any more, or none for a moment."""
    there = {f"{host}:{port}" for key, host, port in gateway_ports(after) if key[-1] == "listen"}
    groups: dict[str, list[str]] = {}
    for key, host, port in gateway_ports(before):
        if key[-1] == "listen" and f"{host}:{port}" not in there:
            groups.setdefault(str(key[1]), []).append(f"{host}:{port}")
    for group, addresses in groups.items():
        yield Step(RETIRE, "gateway", group, f"no gateway answers at {listed(addresses)} any more")
    new = processes_on(engine, after, directory)
    interrupted: dict[str, list[str]] = {}
    for name, spec in processes_on(engine, before, was_in).items():
        # Processes that share a port replace each other.
        if spec.role == "gateway" and "--reuse-port" not in spec.arguments and new.get(name) != spec:
            address = spec.arguments[spec.arguments.index("--listen") + 1]
            if address in there:
                interrupted.setdefault(gateway_group(name, before), []).append(address)
    for group, addresses in interrupted.items():
        detail = f"requests to {listed(addresses)} fail while its process is replaced"
        yield Step(INTERRUPT, "gateway", group, detail)


def changed_tls(before: Fleet, after: Fleet) -> Iterator[Step]:
    """Processes change one after the other: those with TLS and those without must meet in the meantime."""
    was, will = before.security.tls, after.security.tls
    if (was.cert is None) == (will.cert is None) or not before.pools:
        return
    if (was if will.cert is None else will).mode == "permissive":
        return
    way = "to avoid that, apply security.tls.mode: permissive first"
    yield Step(INTERRUPT, "fleet", "security.tls", f"requests fail until every process has restarted; {way}")


def ports_in_use(
    before: Fleet, after: Fleet, committed: Mapping[str, Assignment], kept: Mapping[str, KeptPool]
) -> Iterator[Step]:
    """Ports of the new file that a dropped pool holds until its models have moved."""
    serving = {pool for assignment in committed.values() for pool in assignment.pools}
    held = {
        port: str(path[1])
        for path, _, port in worker_ports(before)
        if path[1] in serving and path[1] in dropped_pools(before, after)
    }
    for pool, running in kept.items():
        if not runs(after, pool):
            held |= {port: pool for arguments in running.processes.values() for port in listens_on(arguments)}
    for path, _, port in (*controller_ports(after), *gateway_ports(after), *worker_ports(at_largest(after))):
        if port in held:
            detail = f"port {port} is held by pool {held[port]} until what it serves is served elsewhere; give another"
            yield Step(REFUSE, "fleet", ".".join(map(str, path)), detail)
            return
