"""Decides which processes to start, drain and stop, to reconcile them with the fleet record. Pure: no clock, no I/O.

The supervisor calls ``decide`` whenever something may have changed and performs its actions; actions in progress are
not repeated. The rule: as long as a group (the gateways, the controllers, the workers of one pool) has more than one
process, a change never stops its last serving one. The only worker of a pool gets a second one beside it while it is
replaced. The only gateway, whose address callers know, is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isochrone.control.fleet.derived.processes import ProcessSpec, surge_of
from isochrone.engines.supervision.ports import conflicts

#: Seconds for a drained worker to finish its requests.
DRAIN_SECONDS = 10.0
#: Seconds until every gateway has seen a drain: before that, an idle worker may still get work.
HEARD_SECONDS = 0.5

#: Seconds until every gateway has seen that a process serves, and others can stop. Gateways read a worker's index every
#: second, and less often after it was unreachable.
STEADY_SECONDS = 3.0

#: Started in this order, so that later ones find what they need.
_ORDER = {"controller": 0, "worker": 1, "gateway": 2}


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state of one process."""

    spec: ProcessSpec
    #: Its present process is registered and serves.
    ready: bool = False
    stopping: bool = False
    #: Since when the supervisor drains it, on the clock of ``now``; None: it does not.
    draining: float | None = None
    #: It has no request in flight.
    idle: bool = False
    #: It has served for long enough that every gateway has seen it.
    steady: bool = True
    #: Its machine gives no sign of it any more.
    lost: bool = False
    #: Why it has no machine yet; "": it has one.
    waits: str = ""

    @property
    def serves(self) -> bool:
        return self.ready and not self.stopping and self.draining is None


@dataclass(frozen=True, slots=True)
class Start:
    spec: ProcessSpec


@dataclass(frozen=True, slots=True)
class Drain:
    name: str


@dataclass(frozen=True, slots=True)
class Undrain:
    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    name: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Start it on another machine."""

    name: str


Action = Start | Drain | Undrain | Stop | Replace


def decide(desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed], now: float) -> list[Action]:
    """The next actions. Both mappings are by the name of a process."""
    actions: list[Action] = []
    desired = {**desired, **_surges(desired, observed)}
    missing = starting_order(spec for name, spec in desired.items() if name not in observed)
    # A process whose port is taken would die at once: the process that holds the port must stop first.
    held_by = {spec.name: {name for name, each in observed.items() if conflicts(spec, each.spec)} for spec in missing}
    actions += [Start(spec) for spec in missing if not held_by[spec.name]]
    waiting = {name for name, holders in held_by.items() if holders}
    leaving = _leaving(desired, observed, waiting, set().union(*held_by.values()))
    for name, each in sorted(observed.items()):
        if name in leaving:
            if (action := _towards_the_end(name, each, now)) is not None:
                actions.append(action)
        elif each.lost:
            actions.append(Replace(name))
        elif each.draining is not None and not each.stopping:
            actions.append(Undrain(name))  # it was to stop, and stays after all
    return actions


def _surges(desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]) -> dict[str, ProcessSpec]:
    """For every pool whose only worker serves and is replaced: a second worker that serves meanwhile."""
    pools: dict[str, list[ProcessSpec]] = {}
    for spec in desired.values():
        if spec.role == "worker":
            pools.setdefault(spec.pool, []).append(spec)
    found = {}
    for specs in pools.values():
        now = observed.get(specs[0].name)
        if (
            len(specs) == 1
            and now is not None
            and now.ready
            and now.spec != specs[0]
            and now.spec.pool == specs[0].pool
        ):
            surge = surge_of(specs[0])
            found[surge.name] = surge
    return found


def starting_order(specs: Iterable[ProcessSpec]) -> list[ProcessSpec]:
    return sorted(specs, key=lambda spec: (_ORDER[spec.role], spec.name))


def stopping_order(specs: Iterable[ProcessSpec]) -> list[list[ProcessSpec]]:
    """Groups of processes to stop together, one group after the other: first those that requests reach first."""
    kinds: dict[int, list[ProcessSpec]] = {}
    for spec in specs:
        kinds.setdefault({"gateway": 0, "worker": 1, "controller": 2}[spec.role], []).append(spec)
    return [kinds[place] for place in sorted(kinds)]


def _leaving(
    desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed], waiting: set[str], blocking: set[str]
) -> set[str]:
    """Processes to stop now: surplus ones, and changed ones as far as the rest of their group serves."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted({*desired, *observed}):
        spec = desired[name] if name in desired else observed[name].spec
        groups.setdefault((spec.role, spec.pool), []).append(name)
    leaving: set[str] = set()
    for names in groups.values():
        present = [name for name in names if name in observed]
        surplus = [name for name in present if name not in desired]
        changed = [name for name in present if name in desired and desired[name] != observed[name].spec]
        stay = [name for name in names if name in desired and name not in changed]
        serving = {name for name in present if observed[name].serves}
        steady = {name for name in serving if observed[name].steady}
        # A process that does not serve can stop at any time: the change may repair it.
        leaving |= {*surplus, *changed} - serving
        # A process that holds another's port must stop, but not before all that can serve do.
        if all(name in steady or name in waiting for name in stay):
            leaving |= blocking & {*surplus, *changed}
        # A process of the desired set must serve before the surplus stops.
        if steady & {*stay} or not (stay or changed):
            leaving |= {*surplus}
        if changed and steady >= {*stay, *changed}:
            leaving.add(_next_to_change(changed, desired, observed))
    return leaving


def _next_to_change(changed: list[str], desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]) -> str:
    """The first whose new ports are free: if ports move up by one, the last process goes first."""
    for name in changed:
        if not any(conflicts(desired[name], each.spec) for other, each in observed.items() if other != name):
            return name
    return changed[0]


def _towards_the_end(name: str, each: Observed, now: float) -> Action | None:
    if each.stopping:
        return None
    # A gateway finishes its requests when it stops, and accepts no new ones; a controller has none.
    if each.spec.role != "worker" or (not each.ready and each.draining is None):
        return Stop(name)
    if each.draining is None:
        return Drain(name)
    drained = now - each.draining
    if drained >= DRAIN_SECONDS or (each.idle and drained >= HEARD_SECONDS):
        return Stop(name)
    return None
