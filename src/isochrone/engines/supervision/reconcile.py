"""What to start, drain and stop, so that the processes become those of the fleet record. Pure: no clock, no I/O.

The supervisor calls ``decide`` whenever something may have changed and carries out what it says; what is already under
way is not said again. The rule it keeps: as long as a group (the gateways, the controllers, the workers of one pool)
has more than one member, a change never takes its last serving member down. The only worker of a pool gets a second one
beside it while it is replaced; the only gateway, whose address is known to callers, has no choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isochrone.control.fleet.processes import ProcessSpec, surge_of
from isochrone.engines.supervision.ports import in_the_way

#: Seconds a worker is given to finish what it has, once it gets no new work.
DRAIN_SECONDS = 10.0
#: Seconds until every gateway has surely heard of a drain: before that, an idle worker may still get work.
HEARD_SECONDS = 0.5

#: Seconds until every gateway has surely heard that a process serves, and others can go. Gateways look at what a worker
#: serves every second, and less often at one that has been away.
STEADY_SECONDS = 3.0

#: Started in this order: what comes later finds what it looks for sooner.
_ORDER = {"controller": 0, "worker": 1, "gateway": 2}


@dataclass(frozen=True, slots=True)
class Observed:
    """One process as it is."""

    spec: ProcessSpec
    #: It serves: registered in the store by its present process, as far as the store is heard.
    ready: bool = False
    stopping: bool = False
    #: Since when the supervisor has it drained, on the clock of ``now``; None: it has not.
    draining: float | None = None
    #: Nothing is in flight on it.
    idle: bool = False
    #: It has served for long enough: every gateway has surely heard that it does.
    steady: bool = True

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


Action = Start | Drain | Undrain | Stop


def decide(desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed], now: float) -> list[Action]:
    """What to do next. The names are those of processes."""
    actions: list[Action] = []
    desired = {**desired, **_surges(desired, observed)}
    missing = starting_order(spec for name, spec in desired.items() if name not in observed)
    # A port that is still held would only make the new process die: first the one that holds it must go.
    held_by = {spec.name: {name for name, each in observed.items() if in_the_way(spec, each.spec)} for spec in missing}
    actions += [Start(spec) for spec in missing if not held_by[spec.name]]
    waiting = {name for name, holders in held_by.items() if holders}
    leaving = _leaving(desired, observed, waiting, set().union(*held_by.values()))
    for name, each in sorted(observed.items()):
        if name in leaving:
            if (action := _towards_the_end(name, each, now)) is not None:
                actions.append(action)
        elif each.draining is not None and not each.stopping:
            actions.append(Undrain(name))  # it was to go, and stays after all
    return actions


def _surges(desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]) -> dict[str, ProcessSpec]:
    """For every pool whose only worker serves and is to be replaced: the worker that serves meanwhile."""
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
    """Who is stopped together, one group after the other: first those that requests reach first."""
    kinds: dict[int, list[ProcessSpec]] = {}
    for spec in specs:
        kinds.setdefault({"gateway": 0, "worker": 1, "controller": 2}[spec.role], []).append(spec)
    return [kinds[place] for place in sorted(kinds)]


def _leaving(
    desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed], waiting: set[str], blocking: set[str]
) -> set[str]:
    """Those that are to end now: surplus ones, and of the changed ones as many as the others can do without."""
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
        # One that serves nothing can go at any time: the change may be what mends it.
        leaving |= {*surplus, *changed} - serving
        # One that holds another's port must go, but not before all those are up that can be.
        if all(name in steady or name in waiting for name in stay):
            leaving |= blocking & {*surplus, *changed}
        # What serves as it should must be there before the surplus goes.
        if steady & {*stay} or not (stay or changed):
            leaving |= {*surplus}
        if changed and steady >= {*stay, *changed}:
            leaving.add(_next_to_change(changed, desired, observed))
    return leaving


def _next_to_change(changed: list[str], desired: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]) -> str:
    """The first whose new ports nobody else holds: when ports move up by one, the last one goes first."""
    for name in changed:
        if not any(in_the_way(desired[name], each.spec) for other, each in observed.items() if other != name):
            return name
    return changed[0]


def _towards_the_end(name: str, each: Observed, now: float) -> Action | None:
    if each.stopping:
        return None
    # A gateway finishes what it has when it is told to stop, and takes nothing new; a controller has nothing.
    if each.spec.role != "worker" or (not each.ready and each.draining is None):
        return Stop(name)
    if each.draining is None:
        return Drain(name)
    drained = now - each.draining
    if drained >= DRAIN_SECONDS or (each.idle and drained >= HEARD_SECONDS):
        return Stop(name)
    return None
