"""The plan of applying a changed fleet.yaml, step by step. Pure: two fleets in, steps out.

``isochrone apply`` shows it first; ``--dry-run`` does nothing else. The supervisor and the leading controller act on
the new record, not on the plan. With a step ``refuse`` nothing is applied; ``retire`` and ``interrupt`` need the user's
agreement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.kubernetes_section import lacking_security
from isochrone.control.fleet.derived.locations import store_url
from isochrone.control.fleet.derived.outside_servers import outside_servers
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.planning.differences import differences, listed
from isochrone.control.fleet.planning.groups import groups_of
from isochrone.control.fleet.planning.ineffective import ineffective
from isochrone.control.fleet.planning.keeping import specs_of
from isochrone.control.fleet.planning.lonely_stages import lonely_stages, without_traffic
from isochrone.control.fleet.planning.losses import (
    changed_tls,
    crowded_pools,
    dropped_pools,
    lost_addresses,
    lost_replicas,
    ports_in_use,
    retired_models,
    retired_pools,
    runs,
)
from isochrone.control.fleet.planning.steps import (
    CHANGE,
    REFUSE,
    RESTART,
    ROLLOUT,
    START,
    STOP,
    Step,
    VersionChange,
    is_refused,
    takes_away,
)
from isochrone.control.fleet.settings.pool_bounds import largest_size, smallest_size
from isochrone.control.fleet.settings.process_names import gateway_group
from isochrone.control.fleet.settings.sections import Pool
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import KUBERNETES, LOCAL, Assignment, KeptPool, PlacementRecord
from isochrone.control.state.rollout_records import STRICT

__all__ = ["Step", "VersionChange", "is_refused", "plan", "rollout_groups", "takes_away"]


#: Settings of a pool that are not on its workers' command lines.
_QUIET = ("min", "max", "autoscale", "warm", "distance_ms", "kind", "replicas")
#: Settings of a pool, a gateway or the controllers that only an engine that chooses machines uses.
_OF_MACHINES = ("cpus", "gpus", "resources", "node_labels", "placement")
#: Settings of a model that change without a restart and without a rollout.
_MODEL_RULES = (
    *("slo", "policy", "policy_options", "affinity", "division", "memory", "traffic", "rollout"),
    *("changes_with", "stages", "min_replicas", "alone", "apart"),
)


def plan(
    before: Fleet | None,
    after: Fleet,
    *,
    directory: Path = Path("/"),
    directory_before: Path | None = None,
    served: Mapping[str, str] | None = None,
    resolved: Mapping[str, str] | None = None,
    stages: Mapping[str, Sequence[str]] | None = None,
    committed: Mapping[str, Assignment] | None = None,
    kept: Mapping[str, KeptPool] | None = None,
    agreed_before: Collection[str] = (),
    engine: str = LOCAL,
    placements: Mapping[str, PlacementRecord] | None = None,
) -> list[Step]:
    """The steps from one fleet to another, refusals first; none: nothing changes.

    ``directory``: of the new file; ``directory_before``: of the old one. ``served``: by model, the present version as
    far as the file changes it; ``resolved``: what ``latest`` means; ``stages``: of ensembles that leave them to their
    configuration. ``committed``: the present assignments; by default those of the old file. ``kept``: pools that
    earlier files dropped and that still serve. ``agreed_before``: what is already being taken away, as ``takes_away``
    names it, and so causes no step. ``engine``: the one that runs the processes. ``placements``: by
    planned pool, the workers that have each model.
    """
    resolved = resolved or {}
    if committed is None:
        committed = _as_said(before)
    was_in = directory_before or directory
    kept = kept or {}
    refused = [*_refused(before, was_in, after, directory), *_insecure(after, engine)]
    if before is not None:
        refused += ports_in_use(before, after, committed, kept)
        refused += crowded_pools(before, after, committed, placements or {})
    if refused:
        return refused
    steps = list(_process_steps(before, was_in, after, directory, kept, engine))
    if before is not None:
        steps += _pool_steps(before, after, kept, engine)
    steps += _version_steps(before, after, served, resolved, stages or {})
    if is_refused(steps):
        return [step for step in steps if step.action == REFUSE]
    if before is not None:
        retired = [
            *retired_models(committed, {**dict.fromkeys(after.models, ""), **resolved}),
            *retired_pools(before, after, committed, kept),
        ]
        steps += (step for step in retired if f"{step.kind} {step.name}" not in agreed_before)
        steps += lost_replicas(before, after, committed, placements or {})
        steps += lost_addresses(before, was_in, after, directory, engine)
        steps += changed_tls(before, after)
        steps += _rule_steps(before, after, committed)
    return [*steps, *ineffective(after, engine)]


def _as_said(fleet: Fleet | None) -> dict[str, Assignment]:
    models = fleet.models if fleet is not None else {}
    return {name: Assignment(model.version, pools=fleet.pools_of(name)) for name, model in models.items() if fleet}


def _insecure(after: Fleet, engine: str) -> Iterator[Step]:
    """Pods that would not start. Those of a rendered fleet are checked when it is rendered."""
    if engine == KUBERNETES and (lacking := lacking_security(after)):
        detail = f"pods start with --require-secure: add {' and '.join(lacking)}, or set it to false"
        yield Step(REFUSE, "fleet", "kubernetes.require_secure", detail)


def _refused(before: Fleet | None, was_in: Path, after: Fleet, directory: Path) -> Iterator[Step]:
    """Changes of the fleet's identity: its name and its store."""
    if before is None:
        return
    stores = before.store.url, after.store.url
    if stores[0] == stores[1]:
        # A relative path means another file beside another fleet.yaml.
        stores = store_url(before, was_in), store_url(after, directory)
    for key, was, given in (("name", before.name, after.name), ("store.url", *stores)):
        if was != given:
            detail = f"cannot change from '{was}' to '{given}' while the fleet runs; stop it and start the new one"
            yield Step(REFUSE, "fleet", key, detail)


# Processes.


def _process_steps(
    before: Fleet | None, was_in: Path, after: Fleet, directory: Path, kept: Mapping[str, KeptPool], engine: str
) -> Iterator[Step]:
    new = processes_on(engine, after, directory)
    # The processes of a pool that comes back run already.
    returning = {name: spec for pool in kept if runs(after, pool) for name, spec in specs_of(pool, kept[pool]).items()}
    old = returning | (processes_on(engine, before, was_in) if before is not None else {})
    retired = dropped_pools(before, after) if before is not None else []
    changes: dict[tuple[str, str, str], list[str]] = {}
    for name in (*old, *(name for name in new if name not in old)):
        was, wanted = old.get(name), new.get(name)
        if was != wanted and not (wanted is None and was is not None and was.pool in retired):
            action = START if was is None else STOP if wanted is None else RESTART
            group = _group(wanted or was, after if wanted else before)
            changes.setdefault((action, *group), []).append(name)
    for pool in kept:
        if names := [name for name, spec in returning.items() if spec.pool == pool and new.get(name) == spec]:
            yield Step(CHANGE, "pool", pool, f"keep {listed(names)}, as they run")
    order = (START, RESTART, STOP)
    for (action, kind, name), names in sorted(changes.items(), key=lambda item: order.index(item[0][0])):
        detail = listed(names)
        if action == RESTART and before is not None:
            detail += f" ({_why(before, was_in, after, directory, kind, name, engine)})"
        yield Step(action, kind, name, detail, processes=tuple(names))


def _group(process: ProcessSpec | None, fleet: Fleet | None) -> tuple[str, str]:
    """The kind and the name of a process's group."""
    if process is None or fleet is None or process.role == "controller":
        return "controller", "control"
    if process.role == "worker":
        return "pool", process.pool
    return "gateway", gateway_group(process.name, fleet)


def _why(before: Fleet, was_in: Path, after: Fleet, directory: Path, kind: str, name: str, engine: str) -> str:
    """The settings on its command line, and of its machine, that changed."""
    unused = _OF_MACHINES if engine == LOCAL else ()
    changed = [f"store.{text}" for text in differences(before.store, after.store)]
    changed += [f"security.{text}" for text in differences(before.security, after.security)]
    changed += [f"observability.{text}" for text in differences(before.observability, after.observability)]
    if was_in != directory:
        changed.append("the file's directory")
    if kind == "controller":
        changed += differences(before.control, after.control, except_for=unused)
    elif kind == "gateway" and name in before.gateways and name in after.gateways:
        changed += differences(before.gateways[name], after.gateways[name], except_for=("count", "tier", *unused))
    elif kind == "pool" and name not in before.pools:
        return "its settings differ from those it runs with"
    elif kind == "pool":
        changed += differences(before.pools[name], after.pools[name], except_for=("workers", *_QUIET, *unused))
        if before.repository != after.repository and not after.pools[name].repository:
            changed.append("repository")
    return "; ".join(changed) or "model sources"


def _pool_steps(before: Fleet, after: Fleet, kept: Mapping[str, KeptPool], engine: str) -> Iterator[Step]:
    """Changes of a pool that restart no process."""
    quiet = (*_QUIET, *_OF_MACHINES) if engine == LOCAL else _QUIET
    for name, pool in after.pools.items():
        if name in before.pools:
            changed = differences(before.pools[name], pool, only=quiet, except_for=("autoscale",))
            changed += _autoscale_changes(before.pools[name], pool)
            if changed:
                yield Step(CHANGE, "pool", name, "; ".join(changed))
    old, new = outside_servers(before), outside_servers(after)
    in_use = {server.name for running in kept.values() for server in running.servers}
    retired = dropped_pools(before, after)
    for action, names in ((START, new.keys() - old.keys()), (STOP, old.keys() - new.keys())):
        for server in sorted(names):
            found = new.get(server) or old[server]
            if found.pool in retired:
                continue
            verb = "use the server" if action == START else "no longer use the server"
            if server in in_use:
                verb = "keep the server"
            yield Step(CHANGE, "pool", found.pool, f"{verb} at {found.upstream.address}")


def _autoscale_changes(before: Pool, after: Pool) -> Iterator[str]:
    if before.autoscale is not None and after.autoscale is not None:
        yield from (f"autoscale.{text}" for text in differences(before.autoscale, after.autoscale))
    elif after.autoscale is not None:
        yield f"the autoscaler sets the number of workers, from {smallest_size(after)} to {largest_size(after)}"
    elif before.autoscale is not None:
        yield f"the autoscaler no longer sets the number of workers: the file does ({after.workers})"


# Models.


def _version_steps(
    before: Fleet | None,
    after: Fleet,
    served: Mapping[str, str] | None,
    resolved: Mapping[str, str],
    stages: Mapping[str, Sequence[str]],
) -> Iterator[Step]:
    changes: dict[str, VersionChange] = {}
    names = dict.fromkeys((*after.models, *resolved))
    for name in names:
        wanted = resolved.get(name, after.of(name).version)
        if served is not None:
            now = served.get(name, "")
        else:
            now = before.of(name).version if before is not None and name in before.models else ""
        if now != wanted:
            changes[name] = VersionChange(name, now, wanted)
    running = {**{name: after.of(name).stages for name in names}, **stages}
    for group in rollout_groups(after, changes, stages):
        parts = tuple(changes[name] for name in group)
        cutover = STRICT if any(after.of(name).rollout.cutover == STRICT for name in group) else "fast"
        words = ", ".join(
            f"{part.model} {part.before} → {part.after}" if part.before else f"{part.model} {part.after} (new)"
            for part in parts
        )
        extras = [
            word for word in ("canary", "compare") if any(getattr(after.of(name).rollout, word) for name in group)
        ]
        if all(not part.before for part in parts):
            extras = []
        lonely = lonely_stages(group, running) if "canary" in extras else {}
        for stage, ensembles in lonely.items():
            yield Step(REFUSE, "model", f"models.{stage}.rollout.canary", without_traffic(stage, ensembles))
        detail = f"{words}; {', '.join([cutover, *extras])}"
        yield Step(ROLLOUT, "model", ", ".join(group), detail, versions=parts)


def rollout_groups(
    fleet: Fleet, changed: Collection[str], stages: Mapping[str, Sequence[str]] | None = None
) -> list[tuple[str, ...]]:
    """Groups of changing models that change as one. ``stages``: of ensembles that leave them to their configuration."""
    ties = {name: {*fleet.of(name).changes_with, *fleet.of(name).stages} for name in {*fleet.models, *changed}}
    for name, models in (stages or {}).items():
        ties.setdefault(name, set()).update(models)
    return groups_of(changed, ties)


def _rule_steps(before: Fleet, after: Fleet, committed: Mapping[str, Assignment]) -> Iterator[Step]:
    """Changes of rules, which reach the gateways through the store and restart nothing."""
    for name in dict.fromkeys((*after.models, *(resolved for resolved in committed if not after.models))):
        pools = committed[name].pools if name in committed else before.pools_of(name)
        if (name in before.models or name in committed) and pools and set(pools) != set(after.pools_of(name)):
            detail = f"serve it in {', '.join(after.pools_of(name))} (was {', '.join(pools)})"
            yield Step(CHANGE, "model", name, detail)
        if name in before.models and name in after.models:
            changed = differences(before.of(name), after.of(name), only=_MODEL_RULES)
            if changed:
                yield Step(CHANGE, "model", name, "; ".join(changed))
    for key in ("defaults", "traffic"):
        changed = differences(getattr(before, key), getattr(after, key))
        if changed:
            yield Step(CHANGE, "fleet", key, "; ".join(changed))
