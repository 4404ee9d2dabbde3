"""One rollout, one step further: the record and what is seen in, the next record and what goes with it out. Pure.

Prepare: every registered worker of the pools has the new versions beside the old, and all agree on their digests. Then,
where asked for, outputs are compared and a canary is watched. Then the cutover (``switching``), and at last the old
goes. Any failure before the cutover ends in ``aborted`` with its reason, and nothing was visible.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from isochrone.control.rollout.decision import Decision, enter
from isochrone.control.rollout.desired_versions import WITHDRAWN, lack_of_memory, needed
from isochrone.control.rollout.first_loads import tries_began, with_first_loads
from isochrone.control.rollout.observed_state import WorkerView, World
from isochrone.control.rollout.switching import switch
from isochrone.control.state.records import (
    ABORTED,
    ABORTING,
    CANARY,
    COMPARING,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    Assignment,
    Change,
    EpochRecord,
    Progress,
    RolloutRecord,
    Split,
    VerdictRecord,
)

#: Seconds for gateways to see a commit and for old versions to go before the rollout is called done anyway.
DRAIN_SECONDS = 60.0
#: Seconds after which it is said what to do about a gateway that does not answer.
HINT_SECONDS = 5.0
#: Seconds for workers to let go of what was prepared.
ABORT_SECONDS = 60.0
#: Seconds for requests that gateways sent to a canary just before they saw it rolled back.
LAST_REQUESTS_SECONDS = 0.5
#: When every gateway had seen that a canary was rolled back, in ``since`` of its rollout.
SEEN = "seen by all"


def advance(record: RolloutRecord, world: World) -> Decision:
    """What is to be done now. The same record and nothing else: wait."""
    if record.abort_asked and record.state in (PENDING, PREPARING, COMPARING, CANARY, SWITCHING):
        return _abort(record, world, record.abort_asked)
    if record.state == PENDING:
        return _begin(record, world)
    if record.state == PREPARING:
        return _prepare(record, world)
    if record.state == COMPARING:
        return _compare(record, world)
    if record.state == CANARY:
        return _try(record, world)
    if record.state == SWITCHING:
        return _switch(record, world)
    if record.state == DRAINING:
        return _drain(record, world)
    if record.state == ABORTING:
        return _undo(record, world)
    return Decision(record)


def _begin(record: RolloutRecord, world: World) -> Decision:
    for other in world.rollouts:
        # One that drains is committed: the way back need not wait for it.
        if other.identity == record.identity or other.state in (PENDING, DRAINING):
            continue
        if set(other.changes) & set(record.changes):
            return Decision(msgspec.structs.replace(record, note=f"waits for rollout {other.identity}"))
    for name in record.changes:
        for worker in world.of_pools(record.changes[name].pools).values():
            lack = lack_of_memory(worker.record, world.epoch, world.rollouts, record)
            if lack:
                return _abort(record, world, lack)
    changes = {
        name: change if change.stages else msgspec.structs.replace(change, stages=world.stages.get(name, ()))
        for name, change in record.changes.items()
    }
    begun = enter(record, PREPARING, world.now, note="", changes=changes)
    return Decision(with_first_loads(begun, world), event="prepares")


# Prepare.


def _prepare(record: RolloutRecord, world: World) -> Decision:
    record = with_first_loads(record, world)
    workers = {
        name: worker for change in record.changes.values() for name, worker in world.of_pools(change.pools).items()
    }
    progress = {
        name: Progress("waiting", "restarts with other repositories")
        if world.is_outdated(worker.record)
        else _progress(record, worker)
        for name, worker in workers.items()
    }
    record = msgspec.structs.replace(record, workers=progress)
    failed = [(name, each.detail) for name, each in progress.items() if each.state == "failed"]
    if failed:
        reasons = "; ".join(f"worker {name}: {detail}" for name, detail in failed)
        return _abort(record, world, f"not every worker could load it: {reasons}")
    # A worker that joined since may not have room.
    for worker in workers.values():
        lack = lack_of_memory(worker.record, world.epoch, world.rollouts, record)
        if lack:
            return _abort(record, world, lack)
    unserved = [name for name, change in record.changes.items() if not world.of_pools(change.pools)]
    waiting = [name for name, each in progress.items() if each.state != "ready"]
    if unserved or waiting:
        # For each try of the first load, and once more for the others.
        began = max(record.since.get(PREPARING, world.now), tries_began(record))
        if world.now - began > record.prepare_seconds:
            what = f"no worker is registered for {', '.join(unserved)}" if unserved else ""
            # Those that only wait for another one's load are not at fault.
            late = [name for name in waiting if record.goes_after(workers[name].record) not in waiting]
            named = [name + _stuck(record, workers[name]) for name in late]
            what = what or f"worker {', '.join(named)} did not get ready"
            return _abort(record, world, f"{what} within {record.prepare_seconds:g} s")
        return Decision(record)
    changes: dict[str, Change] = {}
    for name, change in record.changes.items():
        digests = {
            worker: view.ready(name)[change.version].digest for worker, view in world.of_pools(change.pools).items()
        }
        told = {worker: digest for worker, digest in digests.items() if digest}
        if len(set(told.values())) > 1:
            return _abort(record, world, _disagreement(name, change.version, told))
        digest = next(iter(told.values()), "")
        served = world.epoch.models.get(name)
        if served is not None and not change.is_new and _differ(served.digest, digest):
            reason = f"{name} version {change.version} is {digest[:12]} in pool {', '.join(change.pools)}, and "
            reason += f"{served.digest[:12]} where it is served; its files or its config.pbtxt differ"
            return _abort(record, world, reason)
        changes[name] = msgspec.structs.replace(change, digest=digest)
    return _onward(msgspec.structs.replace(record, changes=changes), world)


def _progress(record: RolloutRecord, worker: WorkerView) -> Progress:
    """How far one worker is with all that concerns it."""
    details = []
    for name, change in record.changes.items():
        if worker.record.pool not in change.pools:
            continue
        failure = worker.failures.get(name)
        loaded = (worker.models or {}).get(name, {}).get(change.version)
        if change.version in worker.ready(name):
            continue
        if failure is not None and change.version in failure.versions:
            return Progress("failed", failure.reason)
        details.append(f"{name} {change.version} {loaded.state.lower() if loaded is not None else ''}".strip())
    if not details:
        return Progress("ready")
    if first := record.goes_after(worker.record):
        return Progress("waiting", f"until worker {first} has loaded it")
    return Progress("waiting" if worker.models is None else "loading", ", ".join(details) + _stuck(record, worker))


def _stuck(record: RolloutRecord, worker: WorkerView) -> str:
    """Loads of other versions of its models that run on a worker: on a Triton, later loads wait for them."""
    others = [
        f"{name} {version}"
        for name, change in record.changes.items()
        for version in sorted(worker.loading(name) - {change.version})
    ]
    return f" (it is still loading {', '.join(others)}; restart it if that hangs)" if others else ""


def _disagreement(model: str, version: str, digests: dict[str, str]) -> str:
    """Who differs from whom: artifact or configuration is not the same everywhere."""
    counts = Counter(digests.values())
    usual = counts.most_common(1)[0][0]
    odd = {worker: digest for worker, digest in digests.items() if digest != usual}
    shown = ", ".join(f"worker {worker} has {digest[:12]}" for worker, digest in sorted(odd.items()))
    return (
        f"{model} version {version} is not the same everywhere: {shown}, {counts[usual]} other(s) have {usual[:12]}; "
        "its files or its config.pbtxt differ there"
    )


def _differ(served: str, found: str) -> bool:
    """Whether two digests tell of different files. Those of a Triton are of its configuration: of another kind."""
    kinds = served.startswith("config-"), found.startswith("config-")
    return bool(served and found) and kinds[0] == kinds[1] and served != found


def _onward(record: RolloutRecord, world: World) -> Decision:
    """Prepared: what comes next of what was asked for."""
    comparable = any(change.before and change.is_new for change in record.changes.values())
    if record.compare is not None and record.state == PREPARING and comparable:
        return Decision(enter(record, COMPARING, world.now), compares=True, event="compares outputs")
    if record.canary is not None and record.state in (PREPARING, COMPARING) and record.canary.weights:
        return Decision(enter(record, CANARY, world.now, step=0), event="begins its canary")
    return Decision(enter(record, SWITCHING, world.now), event="switches")


# Comparison and canary.


def _compare(record: RolloutRecord, world: World) -> Decision:
    word = world.compared.get(record.identity)
    if word is None or word.kind == "wait":
        note = word.reason if word is not None else "gathers requests to compare"
        return Decision(msgspec.structs.replace(record, note=note), compares=True)
    if word.kind == "stop":
        return _abort(_judged(record, "comparison", False, word.reason), world, word.reason)
    record = _judged(record, "comparison", True, word.reason)
    return _onward(msgspec.structs.replace(record, note=word.reason), world)


def _try(record: RolloutRecord, world: World) -> Decision:
    rule = record.canary
    if rule is None:
        return Decision(enter(record, SWITCHING, world.now))
    weight = rule.weights[record.step]
    if not _is_tried(record, world, weight):
        if world.switch is not None:
            return Decision(record)
        epoch = _split(record, world, weight)
        note = f"step {record.step + 1} of {len(rule.weights)}: {weight:.0%} of the traffic"
        since = {**record.since, f"step {record.step + 1}": world.now}
        after = msgspec.structs.replace(record, note=note, since=since, epoch=epoch.epoch)
        return Decision(after, commit=epoch, event=f"canary at {weight:.0%}")
    word = world.judged.get(record.identity)
    if record.promote_asked:
        record = _judged(record, f"canary at {weight:.0%}", True, "promoted by hand")
        return Decision(enter(record, SWITCHING, world.now, note="promoted by hand"), event="promoted by hand")
    if word is None or word.kind == "wait":
        note = word.reason if word is not None and word.reason else record.note
        return Decision(msgspec.structs.replace(record, note=note), observes=True)
    if word.kind == "stop":
        record = _judged(record, f"canary at {weight:.0%}", False, word.reason)
        return _abort(record, world, f"the canary at {weight:.0%} is worse: {word.reason}")
    record = _judged(record, f"canary at {weight:.0%}", True, word.reason)
    if record.step + 1 < len(rule.weights):
        after = msgspec.structs.replace(record, step=record.step + 1, note=word.reason)
        return Decision(after, event=f"passed at {weight:.0%}: {word.reason}")
    # Told here, with the figures: the record's note goes on to say other things.
    return Decision(enter(record, SWITCHING, world.now, note=word.reason), event=f"passed its canary: {word.reason}")


def _judged(record: RolloutRecord, of: str, passed: bool, reason: str) -> RolloutRecord:
    """The note goes on to say other things; verdicts stay with the rollout. One for each part, however often said."""
    others = tuple(each for each in record.verdicts if each.of != of)
    return msgspec.structs.replace(record, verdicts=(*others, VerdictRecord(of, passed, reason)))


def _is_tried(record: RolloutRecord, world: World, weight: float) -> bool:
    for name, change in record.changes.items():
        if not change.is_new:
            continue
        assignment = world.epoch.models.get(name)
        canary = assignment.canary if assignment is not None else None
        if canary is None or canary.version != change.version or canary.weight != weight:
            return False
    return True


def _split(record: RolloutRecord, world: World, weight: float) -> EpochRecord:
    """An epoch in which a part of the traffic gets the new versions."""
    rule = record.canary
    assert rule is not None
    number = world.epoch.epoch + 1
    models = dict(world.epoch.models)
    for name, change in record.changes.items():
        split = Split(change.version, change.digest, weight, rule.sticky, rule.header)
        before = models.get(name)
        if before is not None and change.is_new:
            models[name] = msgspec.structs.replace(before, canary=split, epoch=number)
    return EpochRecord(number, models, record.identity, record.by, world.now)


# The end.


def _switch(record: RolloutRecord, world: World) -> Decision:
    for name, change in record.changes.items():
        workers = world.of_pools(change.pools)
        having = [worker for worker in workers.values() if change.version in worker.ready(name)]
        if 2 * len(having) < len(workers) or not workers:
            # Too many came or went since: those that are there now have to have it first.
            return Decision(enter(record, PREPARING, world.now), ends_switch=_owns_switch(record, world))
    return switch(record, world)


def _owns_switch(record: RolloutRecord, world: World) -> bool:
    return world.switch is not None and world.switch.rollout == record.identity


def _drain(record: RolloutRecord, world: World) -> Decision:
    late = world.lagging(record.epoch)
    leaving = _superfluous(record, world)
    waited = world.now - record.since.get(DRAINING, world.now)
    # Pools that it has left serve it until nobody sends there: what takes them away may not happen under a gateway.
    held = late and any(change.left for change in record.changes.values())
    if held or ((late or leaving) and waited < DRAIN_SECONDS):
        note = _waits(late, record.epoch, waited) if late else f"drains {leaving[0]}"
        return Decision(msgspec.structs.replace(record, note=note))
    return Decision(enter(record, DONE, world.now, note=""), event="done")


def _waits(late: list[str], epoch: int, waited: float) -> str:
    """After a while it may be that it never will."""
    hint = f"; if one is dead for good, say so: isochrone forget {late[0]}" if waited > HINT_SECONDS else ""
    return f"waits for gateway {', '.join(late)} to see epoch {epoch}{hint}"


def _superfluous(record: RolloutRecord, world: World) -> list[str]:
    """Versions of the rollout's models that workers still have and nobody wants."""
    found = []
    for worker in world.workers.values():
        kept = needed(worker.record, world.epoch, world.rollouts)
        for name in record.changes:
            found += [
                f"{name} {version} on {worker.record.name}"
                for version in worker.ready(name)
                if (name, version) not in kept
            ]
    return found


def _abort(record: RolloutRecord, world: World, reason: str) -> Decision:
    """From now on nobody wants the new versions; a canary's share goes back in the same transaction."""
    after = enter(record, ABORTING, world.now, reason=reason, note="")
    ends_switch = _owns_switch(record, world)
    if any(_canary_of(record, name, world.epoch.models.get(name)) for name in record.changes):
        if world.switch is not None and not ends_switch:
            return Decision(record)
        number = world.epoch.epoch + 1
        models = {
            name: msgspec.structs.replace(assignment, canary=None, epoch=number)
            if _canary_of(record, name, assignment)
            else assignment
            for name, assignment in world.epoch.models.items()
        }
        epoch = EpochRecord(number, models, record.identity, record.by, world.now)
        after = msgspec.structs.replace(after, epoch=number)
        return Decision(after, commit=epoch, ends_switch=ends_switch, event=f"rolled back: {reason}")
    return Decision(after, ends_switch=ends_switch, event=f"aborted: {reason}")


def _canary_of(record: RolloutRecord, name: str, assignment: Assignment | None) -> bool:
    change = record.changes.get(name)
    if assignment is None or assignment.canary is None or change is None:
        return False
    return assignment.canary.version == change.version


def _undo(record: RolloutRecord, world: World) -> Decision:
    if any(_canary_of(record, name, world.epoch.models.get(name)) for name in record.changes):
        return _abort(record, world, record.reason)
    if _owns_switch(record, world):
        return Decision(record, ends_switch=True)
    waited = world.now - record.since.get(ABORTING, world.now)
    if record.epoch and WITHDRAWN not in record.since:
        late = world.lagging(record.epoch)
        if late:
            # However long that takes: to unload it under a gateway that sends to it would fail requests.
            since = {word: at for word, at in record.since.items() if word != SEEN}
            return Decision(msgspec.structs.replace(record, note=_waits(late, record.epoch, waited), since=since))
        if SEEN not in record.since:
            return Decision(msgspec.structs.replace(record, note="", since={**record.since, SEEN: world.now}))
        if world.now - record.since[SEEN] < LAST_REQUESTS_SECONDS:
            return Decision(record)
        return Decision(msgspec.structs.replace(record, since={**record.since, WITHDRAWN: world.now}))
    began = record.since.get(WITHDRAWN, record.since.get(ABORTING, world.now))
    if _superfluous(record, world) and world.now - began < ABORT_SECONDS:
        return Decision(record)
    # Why was told when it was decided.
    return Decision(enter(record, ABORTED, world.now))
