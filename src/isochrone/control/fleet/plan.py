"""What applying a changed fleet.yaml does, step by step, before it is done. Pure: two fleets in, steps out.

``isochrone apply`` shows it first, ``--dry-run`` shows nothing else. It carries nothing out: the supervisor and the
leading controller see the new record and act on their own. A step with the action ``refuse`` means that nothing is
applied at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isochrone.control.fleet.model_spec import Section
from isochrone.control.fleet.processes import ProcessSpec, outside_servers, processes
from isochrone.control.fleet.quantities import bytes_text
from isochrone.control.fleet.spec import Fleet
from isochrone.control.records import STRICT

REFUSE, START, RESTART, STOP, ROLLOUT, RETIRE, CHANGE = (
    "refuse",
    "start",
    "restart",
    "stop",
    "rollout",
    "retire",
    "change",
)
#: Of a pool, what its workers' command lines do not tell.
_QUIET = ("min", "max", "warm", "cpus", "distance_ms", "kind")
#: Of a model, what its command lines and its rollouts do not tell: it changes while requests flow.
_MODEL_RULES = ("slo", "policy", "policy_options", "affinity", "memory", "traffic", "rollout", "changes_with", "stages")


@dataclass(frozen=True, slots=True)
class VersionChange:
    """One model in a rollout; ``before`` "": it was not served."""

    model: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that applying does."""

    action: str
    #: Of what: controller, gateway, pool, model, fleet.
    kind: str
    #: The pool, the group of gateways, the model, or the key.
    name: str
    #: In words.
    detail: str
    #: The processes it starts, restarts or stops.
    processes: tuple[str, ...] = ()
    #: The versions it changes.
    versions: tuple[VersionChange, ...] = ()

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.name}: {self.detail}"


def plan(
    before: Fleet | None,
    after: Fleet,
    *,
    directory: Path = Path("/"),
    directory_before: Path | None = None,
    served: Mapping[str, str] | None = None,
    resolved: Mapping[str, str] | None = None,
    stages: Mapping[str, Sequence[str]] | None = None,
) -> list[Step]:
    """The steps from one fleet to another, refusals first; none: nothing changes.

    ``directory`` is the new file's, ``directory_before`` the old one's. ``served``: the versions served now, by model;
    ``resolved``: what ``latest`` means; ``stages``: of ensembles, where the file leaves them to their configuration.
    """
    refused = list(_refused(before, after))
    if refused:
        return refused
    steps = list(_process_steps(before, directory_before or directory, after, directory))
    if before is not None:
        steps += _pool_steps(before, after)
    steps += _version_steps(before, after, served, resolved or {}, stages or {})
    if before is not None:
        steps += _rule_steps(before, after)
    return steps


def is_refused(steps: Iterable[Step]) -> bool:
    return any(step.action == REFUSE for step in steps)


def _refused(before: Fleet | None, after: Fleet) -> Iterator[Step]:
    """What a fleet is known by: another one is another fleet."""
    if before is None:
        return
    for key, was, given in (("name", before.name, after.name), ("store.url", before.store.url, after.store.url)):
        if was != given:
            detail = f"cannot change from '{was}' to '{given}' while the fleet runs; stop it and start the new one"
            yield Step(REFUSE, "fleet", key, detail)


# Processes.


def _process_steps(before: Fleet | None, was_in: Path, after: Fleet, directory: Path) -> Iterator[Step]:
    old = processes(before, was_in) if before is not None else {}
    new = processes(after, directory)
    changes: dict[tuple[str, str, str], list[str]] = {}
    for name in (*old, *(name for name in new if name not in old)):
        was, wanted = old.get(name), new.get(name)
        if was != wanted:
            action = START if was is None else STOP if wanted is None else RESTART
            group = _group(wanted or was, after if wanted else before)
            changes.setdefault((action, *group), []).append(name)
    order = (START, RESTART, STOP)
    for (action, kind, name), names in sorted(changes.items(), key=lambda item: order.index(item[0][0])):
        detail = _listed(names)
        if action == RESTART and before is not None:
            detail += f" ({_why(before, was_in, after, directory, kind, name)})"
        yield Step(action, kind, name, detail, processes=tuple(names))


def _group(process: ProcessSpec | None, fleet: Fleet | None) -> tuple[str, str]:
    """What a process is one of, by kind and name."""
    if process is None or fleet is None or process.role == "controller":
        return "controller", "control"
    if process.role == "worker":
        return "pool", process.pool
    # gw-2.1 is the first process of the second gateway of gw: names of groups have no dots.
    gateway = process.name.partition(".")[0]
    return "gateway", gateway if gateway in fleet.gateways else gateway.rpartition("-")[0]


def _why(before: Fleet, was_in: Path, after: Fleet, directory: Path, kind: str, name: str) -> str:
    """Which settings on its command line changed."""
    changed = [f"store.{text}" for text in _changed(before.store, after.store)]
    if was_in != directory:
        changed.append("the file's directory")
    if kind == "controller":
        changed += _changed(before.control, after.control)
    elif kind == "gateway" and name in before.gateways and name in after.gateways:
        changed += _changed(before.gateways[name], after.gateways[name], except_for=("count", "tier"))
    elif kind == "pool":
        changed += _changed(before.pools[name], after.pools[name], except_for=("workers", *_QUIET))
        if before.repository != after.repository and not after.pools[name].repository:
            changed.append("repository")
    return "; ".join(changed) or "model sources"


def _pool_steps(before: Fleet, after: Fleet) -> Iterator[Step]:
    """What changes of a pool without a process being touched."""
    for name, pool in after.pools.items():
        if name in before.pools:
            changed = _changed(before.pools[name], pool, only=_QUIET)
            if changed:
                yield Step(CHANGE, "pool", name, "; ".join(changed))
    old, new = outside_servers(before), outside_servers(after)
    for action, names in ((START, new.keys() - old.keys()), (STOP, old.keys() - new.keys())):
        for server in sorted(names):
            found = new.get(server) or old[server]
            word = "use the server" if action == START else "no longer use the server"
            yield Step(CHANGE, "pool", found.pool, f"{word} at {found.upstream.address}")


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
        detail = f"{words}; {', '.join([cutover, *extras])}"
        yield Step(ROLLOUT, "model", ", ".join(group), detail, versions=parts)
    gone = set(before.models) - set(after.models) if before is not None and after.models else set()
    for name in sorted(gone - set(resolved)):
        yield Step(RETIRE, "model", name, "no longer served")


def rollout_groups(
    fleet: Fleet, changed: Iterable[str], stages: Mapping[str, Sequence[str]] | None = None
) -> list[tuple[str, ...]]:
    """The models that change, in groups of those that change as one: tied by ``with``, or as stages of an ensemble."""
    waiting = list(dict.fromkeys(changed))
    groups: list[tuple[str, ...]] = []
    ties = {name: {*fleet.of(name).changes_with, *fleet.of(name).stages} for name in {*fleet.models, *waiting}}
    for name, models in (stages or {}).items():
        ties.setdefault(name, set()).update(models)
    while waiting:
        group = {waiting[0]}
        while more := {
            other for other in waiting if other not in group and any(_tied(ties, one, other) for one in group)
        }:
            group |= more
        groups.append(tuple(name for name in waiting if name in group))
        waiting = [name for name in waiting if name not in group]
    return groups


def _tied(ties: Mapping[str, set[str]], one: str, other: str) -> bool:
    return other in ties.get(one, ()) or one in ties.get(other, ())


def _rule_steps(before: Fleet, after: Fleet) -> Iterator[Step]:
    """Rules reach the gateways through the store: nothing is restarted."""
    for name, model in after.models.items():
        was = before.of(name)
        changed = _changed(was, model, only=_MODEL_RULES)
        if name in before.models:
            if set(before.pools_of(name)) != set(after.pools_of(name)):
                pools = ", ".join(after.pools_of(name))
                yield Step(CHANGE, "model", name, f"serve it in {pools} (was {', '.join(before.pools_of(name))})")
            if changed:
                yield Step(CHANGE, "model", name, "; ".join(changed))
    for key in ("defaults", "traffic", "security", "observability"):
        changed = _changed(getattr(before, key), getattr(after, key))
        if changed:
            yield Step(CHANGE, "fleet", key, "; ".join(changed))


# Words.


def _changed(
    before: Section, after: Section, only: Sequence[str] | None = None, except_for: Sequence[str] = ()
) -> list[str]:
    """``slo.deadline_ms: 50 → 20``, for every key that differs."""
    found = []
    for name, field in type(after).model_fields.items():
        if (only is not None and name not in only) or name in except_for:
            continue
        was, now = getattr(before, name), getattr(after, name)
        if was == now:
            continue
        key = field.alias or name
        if isinstance(was, Section) and isinstance(now, Section):
            found += [f"{key}.{text}" for text in _changed(was, now)]
        else:
            found.append(f"{key}: {_shown(name, was)} → {_shown(name, now)}")
    return found


def _shown(name: str, value: Any) -> str:
    if name == "memory":
        return bytes_text(value) if value else "not stated"
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(_shown("", item) for item in value)
    if isinstance(value, Section):
        return _shown("", value.model_dump(exclude_unset=True)) if value.model_fields_set else "defaults"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(key, item)}" for key, item in value.items())
    return str(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} … {names[-1]} ({len(names)} in all)"
