"""The state machine of a rollout: its record and the observed state in, the next record and its effects out. Pure.

Prepare: every registered worker that has to have the models loads the new versions beside the old, and all report the
same digests. Then, if the rollout asks for it, outputs are compared and a canary is judged. Then the cutover
(``switching``). Drain: the old versions are unloaded. A failure before the cutover ends in ``aborted`` with its reason,
and no client saw anything of it.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from isochrone.control.rollout.decision import Decision, enter
from isochrone.control.rollout.desired_versions import LACKS_ROOM, WITHDRAWN, needed
from isochrone.control.rollout.first_loads import tries_began, with_first_loads
from isochrone.control.rollout.memory import Shortage, shortage, shortage_at_start
from isochrone.control.rollout.observed_state import XDS_SUFFIX, ObservedState, ObservedWorker
from isochrone.control.rollout.switching import switch
from isochrone.control.state.records import Assignment, EpochRecord, Split
from isochrone.control.state.rollout_records import (
    ABORTED,
    ABORTING,
    CANARY,
    COMPARING,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    SWITCHING,
    Change,
    Progress,
    RolloutRecord,
    VerdictRecord,
)

#: Seconds for gateways to see a commit and for workers to unload old versions; then the rollout is done anyway.
DRAIN_SECONDS = 60.0
#: Seconds after which the note says what to do about a gateway that does not report.
HINT_SECONDS = 5.0
#: Seconds for workers to unload what was prepared.
ABORT_SECONDS = 60.0
#: Seconds for requests that gateways sent to a canary just before they saw it rolled back.
LAST_REQUESTS_SECONDS = 0.5
#: A mark in ``since`` of a rollout: when every gateway had seen that its canary was rolled back.
SEEN = "seen by all"


def advance(record: RolloutRecord, observed: ObservedState) -> Decision:
    """The next decision. A decision with the same record and nothing else means: wait."""
    if record.abort_asked and record.state in (PENDING, PREPARING, COMPARING, CANARY, SWITCHING):
        return _abort(record, observed, record.abort_asked)
    if record.state == PENDING:
        return _begin(record, observed)
    if record.state == PREPARING:
        return _prepare(record, observed)
    if record.state == COMPARING:
        return _compare(record, observed)
    if record.state == CANARY:
        return _evaluate_canary(record, observed)
    if record.state == SWITCHING:
        return _switch(record, observed)
    if record.state == DRAINING:
        return _drain(record, observed)
    if record.state == ABORTING:
        return _undo(record, observed)
    return Decision(record)


def _begin(record: RolloutRecord, observed: ObservedState) -> Decision:
    for other in observed.rollouts:
        # A draining rollout is committed: a rollback need not wait for it.
        if other.identity == record.identity or other.state in (PENDING, DRAINING):
            continue
        if set(other.changes) & set(record.changes):
            return Decision(msgspec.structs.replace(record, note=f"waits for rollout {other.identity}"))
    changes = {name: _with_stages_and_sizes(name, change, observed) for name, change in record.changes.items()}
    if found := shortage_at_start(msgspec.structs.replace(record, changes=changes), observed):
        return _wait_for_memory(record, observed, found)
    begun = enter(_with_memory(record), PREPARING, observed.now, note="", changes=changes)
    return Decision(with_first_loads(begun, observed), event="prepares")


def _with_stages_and_sizes(name: str, change: Change, observed: ObservedState) -> Change:
    """A change with what its record may not have: the stages, and the sizes of earlier versions."""
    served, memory = observed.epoch.models.get(name), change.memory
    before = served.memory if served is not None and served.version == change.before else 0
    is_planned = not observed.placements.keys().isdisjoint(change.pools)
    if served is not None and served.previous == change.version and is_planned:
        # The file states the size of the version that is rolled back.
        memory = max(memory, served.previous_memory)
    stages = change.stages or observed.stages.get(name, ())
    return msgspec.structs.replace(change, stages=stages, memory=memory, before_memory=before)


def _wait_for_memory(record: RolloutRecord, observed: ObservedState, found: Shortage) -> Decision:
    since = record.since.get(LACKS_ROOM, observed.now)
    if not found.may_end or observed.now - since > record.prepare_seconds:
        return _abort(record, observed, found.reason)
    return Decision(msgspec.structs.replace(record, note=found.note, since={**record.since, LACKS_ROOM: since}))


def _with_memory(record: RolloutRecord) -> RolloutRecord:
    """The record of a rollout that does not wait for memory, or does no more."""
    if LACKS_ROOM not in record.since:
        return record
    since = {mark: at for mark, at in record.since.items() if mark != LACKS_ROOM}
    return msgspec.structs.replace(record, note="", since=since)


# Prepare.


def _prepare(record: RolloutRecord, observed: ObservedState) -> Decision:
    record = with_first_loads(record, observed)
    workers = {
        name: worker
        for model, change in record.changes.items()
        for name, worker in observed.assigned(model, change.pools).items()
    }
    progress = {
        name: Progress("waiting", "restarts with other repositories")
        if observed.is_outdated(worker.record)
        else _progress(record, worker, observed)
        for name, worker in workers.items()
    }
    record = msgspec.structs.replace(record, workers=progress)
    failed = [(name, each.detail) for name, each in progress.items() if each.state == "failed"]
    if failed:
        reasons = "; ".join(f"worker {name}: {detail}" for name, detail in failed)
        return _abort(record, observed, f"not every worker could load it: {reasons}")
    if found := shortage(record, workers.values(), observed):
        return _wait_for_memory(record, observed, found)
    record = _with_memory(record)
    unserved = [name for name, change in record.changes.items() if not observed.assigned(name, change.pools)]
    waiting = [name for name, each in progress.items() if each.state != "ready"]
    if unserved or waiting:
        # The limit holds for each attempt at the first load, and once more for the other workers.
        began = max(record.since.get(PREPARING, observed.now), tries_began(record))
        if observed.now - began > record.prepare_seconds:
            what = _without_workers(record, unserved, observed)
            # Workers that only wait for another worker's load are not the cause.
            late = [name for name in waiting if record.goes_after(workers[name].record) not in waiting]
            named = [name + _stuck(record, workers[name]) for name in late]
            what = what or f"worker {', '.join(named)} did not get ready"
            return _abort(record, observed, f"{what} within {record.prepare_seconds:g} s")
        unplaced = _unplaced(record, unserved, observed)
        return Decision(msgspec.structs.replace(record, note=unplaced) if unplaced else record)
    changes: dict[str, Change] = {}
    for name, change in record.changes.items():
        digests = {
            worker: view.ready(name)[change.version].digest
            for worker, view in observed.assigned(name, change.pools).items()
        }
        reported = {worker: digest for worker, digest in digests.items() if digest}
        if len(set(reported.values())) > 1:
            return _abort(record, observed, _disagreement(name, change.version, reported))
        digest = next(iter(reported.values()), "")
        served = observed.epoch.models.get(name)
        if served is not None and not change.is_new and _differ(served.digest, digest):
            reason = f"{name} version {change.version} is {digest[:12]} in pool {', '.join(change.pools)}, and "
            reason += f"{served.digest[:12]} where it is served; its files or its config.pbtxt differ"
            return _abort(record, observed, reason)
        signed_by = _signed_by(name, change, observed)
        changes[name] = msgspec.structs.replace(change, digest=digest, signed_by=signed_by)
    return _onward(msgspec.structs.replace(record, changes=changes), observed)


def _without_workers(record: RolloutRecord, models: list[str], observed: ObservedState) -> str:
    """Why some models of a rollout have no worker; "": there are none."""
    if unplaced := _unplaced(record, models, observed):
        return f"{unplaced}; that did not change"
    return f"no worker is registered for {', '.join(models)}" if models else ""


def _unplaced(record: RolloutRecord, models: list[str], observed: ObservedState) -> str:
    """Of models in planned pools that no worker can take: why."""
    reasons = {
        f"no worker can take {model}: {placement.unplaced[model]}"
        for model in models
        for pool in record.changes[model].pools
        if (placement := observed.placements.get(pool)) is not None and model in placement.unplaced
    }
    return "; ".join(sorted(reasons))


def _progress(record: RolloutRecord, worker: ObservedWorker, observed: ObservedState) -> Progress:
    """How far one worker has loaded the versions that it needs."""
    details = []
    for name, change in record.changes.items():
        if not observed.is_assigned(worker, name, change.pools):
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


def _stuck(record: RolloutRecord, worker: ObservedWorker) -> str:
    """A note on loads of other versions of the same models on a worker: on a Triton, later loads wait for them."""
    others = [
        f"{name} {version}"
        for name, change in record.changes.items()
        for version in sorted(worker.loading(name) - {change.version})
    ]
    return f" (it is still loading {', '.join(others)}; restart it if that hangs)" if others else ""


def _signed_by(model: str, change: Change, observed: ObservedState) -> str:
    """Who signed a prepared version, as the first worker that verified it reports."""
    workers = observed.assigned(model, change.pools)
    reported = (workers[name].ready(model)[change.version].signed_by for name in sorted(workers))
    return next(filter(None, reported), "")


def _disagreement(model: str, version: str, digests: dict[str, str]) -> str:
    """Which workers report another digest than most: their artifact or configuration differs."""
    counts = Counter(digests.values())
    usual = counts.most_common(1)[0][0]
    odd = {worker: digest for worker, digest in digests.items() if digest != usual}
    shown = ", ".join(f"worker {worker} has {digest[:12]}" for worker, digest in sorted(odd.items()))
    return (
        f"{model} version {version} is not the same everywhere: {shown}, {counts[usual]} other(s) have {usual[:12]}; "
        "its files or its config.pbtxt differ there"
    )


def _differ(served: str, found: str) -> bool:
    """Whether two digests show different files. A Triton's digest covers its configuration only, and is not comparable
    with a worker's."""
    kinds = served.startswith("config-"), found.startswith("config-")
    return bool(served and found) and kinds[0] == kinds[1] and served != found


def _onward(record: RolloutRecord, observed: ObservedState) -> Decision:
    """The next gate of a prepared rollout: comparison, canary, cutover."""
    comparable = any(change.before and change.is_new for change in record.changes.values())
    if record.compare is not None and record.state == PREPARING and comparable:
        return Decision(enter(record, COMPARING, observed.now), compares=True, event="compares outputs")
    if record.canary is not None and record.state in (PREPARING, COMPARING) and record.canary.weights:
        return Decision(enter(record, CANARY, observed.now, step=0), event="begins its canary")
    return Decision(enter(record, SWITCHING, observed.now), event="switches")


# Comparison and canary.


def _compare(record: RolloutRecord, observed: ObservedState) -> Decision:
    verdict = observed.compared.get(record.identity)
    if verdict is None or verdict.kind == "wait":
        note = verdict.reason if verdict is not None else "gathers requests to compare"
        return Decision(msgspec.structs.replace(record, note=note), compares=True)
    if verdict.kind == "stop":
        return _abort(_judged(record, "comparison", False, verdict.reason), observed, verdict.reason)
    record = _judged(record, "comparison", True, verdict.reason)
    return _onward(msgspec.structs.replace(record, note=verdict.reason), observed)


def _evaluate_canary(record: RolloutRecord, observed: ObservedState) -> Decision:
    rule = record.canary
    if rule is None:
        return Decision(enter(record, SWITCHING, observed.now))
    weight = rule.weights[record.step]
    if not _is_split(record, observed, weight):
        if observed.switch is not None:
            return Decision(record)
        epoch = _split(record, observed, weight)
        note = f"step {record.step + 1} of {len(rule.weights)}: {weight:.0%} of the traffic"
        since = {**record.since, f"step {record.step + 1}": observed.now}
        after = msgspec.structs.replace(record, note=note, since=since, epoch=epoch.epoch)
        return Decision(after, commit=epoch, event=f"canary at {weight:.0%}")
    verdict = observed.judged.get(record.identity)
    if record.promote_asked:
        record = _judged(record, f"canary at {weight:.0%}", True, "promoted by hand")
        return Decision(enter(record, SWITCHING, observed.now, note="promoted by hand"), event="promoted by hand")
    if verdict is None or verdict.kind == "wait":
        note = verdict.reason if verdict is not None and verdict.reason else record.note
        return Decision(msgspec.structs.replace(record, note=note), observes=True)
    if verdict.kind == "stop":
        record = _judged(record, f"canary at {weight:.0%}", False, verdict.reason)
        return _abort(record, observed, f"the canary at {weight:.0%} is worse: {verdict.reason}")
    record = _judged(record, f"canary at {weight:.0%}", True, verdict.reason)
    if record.step + 1 < len(rule.weights):
        passed = f"passed at {weight:.0%}: {verdict.reason}"
        return Decision(msgspec.structs.replace(record, step=record.step + 1, note=passed), event=passed)
    # The event keeps the figures: the record's note is overwritten later.
    return Decision(
        enter(record, SWITCHING, observed.now, note=verdict.reason), event=f"passed its canary: {verdict.reason}"
    )


def _judged(record: RolloutRecord, of: str, passed: bool, reason: str) -> RolloutRecord:
    """The record with one verdict for each part of the evaluation. Unlike the note, verdicts stay with the rollout."""
    others = tuple(each for each in record.verdicts if each.of != of)
    return msgspec.structs.replace(record, verdicts=(*others, VerdictRecord(of, passed, reason)))


def _is_split(record: RolloutRecord, observed: ObservedState, weight: float) -> bool:
    for name, change in record.changes.items():
        if not change.is_new:
            continue
        assignment = observed.epoch.models.get(name)
        canary = assignment.canary if assignment is not None else None
        if canary is None or canary.version != change.version or canary.weight != weight:
            return False
    return True


def _split(record: RolloutRecord, observed: ObservedState, weight: float) -> EpochRecord:
    """An epoch in which a share of the traffic gets the new versions."""
    rule = record.canary
    assert rule is not None
    number = observed.next_epoch
    models = dict(observed.epoch.models)
    for name, change in record.changes.items():
        split = Split(change.version, change.digest, weight, rule.sticky, rule.header)
        before = models.get(name)
        if before is not None and change.is_new:
            models[name] = msgspec.structs.replace(before, canary=split, epoch=number)
    return EpochRecord(number, models, record.identity, record.by, observed.now)


# The end.


def _switch(record: RolloutRecord, observed: ObservedState) -> Decision:
    for name, change in record.changes.items():
        workers = observed.assigned(name, change.pools)
        having = [worker for worker in workers.values() if change.version in worker.ready(name)]
        if 2 * len(having) < len(workers) or not workers:
            # Too many workers joined or left since: the present ones must load it first.
            return Decision(enter(record, PREPARING, observed.now), ends_switch=_owns_switch(record, observed))
    return switch(record, observed)


def _owns_switch(record: RolloutRecord, observed: ObservedState) -> bool:
    return observed.switch is not None and observed.switch.rollout == record.identity


def _drain(record: RolloutRecord, observed: ObservedState) -> Decision:
    late = observed.lagging(record.epoch)
    leaving = _superfluous(record, observed)
    waited = observed.now - record.since.get(DRAINING, observed.now)
    # Pools that the model leaves keep serving until no gateway sends requests there, however long that takes.
    held = late and any(change.left for change in record.changes.values())
    if held or ((late or leaving) and waited < DRAIN_SECONDS):
        note = _waits(late, record.epoch, waited) if late else f"drains {leaving[0]}"
        return Decision(msgspec.structs.replace(record, note=note))
    return Decision(enter(record, DONE, observed.now, note=""), event="done")


def _waits(late: list[str], epoch: int, waited: float) -> str:
    """After a while with the advice for a gateway that never will."""
    # An xDS server stops waiting for its clients by itself.
    can_forget = waited > HINT_SECONDS and not late[0].endswith(XDS_SUFFIX)
    hint = f"; if one is dead for good, run: isochrone forget {late[0]}" if can_forget else ""
    return f"waits for gateway {', '.join(late)} to see epoch {epoch}{hint}"


def _superfluous(record: RolloutRecord, observed: ObservedState) -> list[str]:
    """Versions of the rollout's models that workers still have and do not need."""
    found = []
    for worker in observed.workers.values():
        kept = needed(worker.record, observed.epoch, observed.rollouts, observed.placements)
        for name in record.changes:
            failure = worker.failures.get(name)
            why = f" ({failure.reason})" if failure is not None else ""
            found += [
                f"{name} {version} on {worker.record.name}{why}"
                for version in worker.ready(name)
                if (name, version) not in kept
            ]
    return found


def _abort(record: RolloutRecord, observed: ObservedState, reason: str) -> Decision:
    """Abort: the new versions are no longer needed. A canary's share goes back in the same transaction."""
    after = enter(record, ABORTING, observed.now, reason=reason, note="")
    ends_switch = _owns_switch(record, observed)
    if any(_canary_of(record, name, observed.epoch.models.get(name)) for name in record.changes):
        if observed.switch is not None and not ends_switch:
            return Decision(record)
        number = observed.next_epoch
        models = {
            name: msgspec.structs.replace(assignment, canary=None, epoch=number)
            if _canary_of(record, name, assignment)
            else assignment
            for name, assignment in observed.epoch.models.items()
        }
        epoch = EpochRecord(number, models, record.identity, record.by, observed.now)
        after = msgspec.structs.replace(after, epoch=number)
        return Decision(after, commit=epoch, ends_switch=ends_switch, event=f"rolled back: {reason}")
    return Decision(after, ends_switch=ends_switch, event=f"aborted: {reason}")


def _canary_of(record: RolloutRecord, name: str, assignment: Assignment | None) -> bool:
    change = record.changes.get(name)
    if assignment is None or assignment.canary is None or change is None:
        return False
    return assignment.canary.version == change.version


def _undo(record: RolloutRecord, observed: ObservedState) -> Decision:
    if any(_canary_of(record, name, observed.epoch.models.get(name)) for name in record.changes):
        return _abort(record, observed, record.reason)
    if _owns_switch(record, observed):
        return Decision(record, ends_switch=True)
    waited = observed.now - record.since.get(ABORTING, observed.now)
    if record.epoch and WITHDRAWN not in record.since:
        late = observed.lagging(record.epoch)
        if late:
            # However long that takes: unloading a version that a gateway still sends requests to would fail them.
            since = {mark: at for mark, at in record.since.items() if mark != SEEN}
            return Decision(msgspec.structs.replace(record, note=_waits(late, record.epoch, waited), since=since))
        if SEEN not in record.since:
            return Decision(msgspec.structs.replace(record, note="", since={**record.since, SEEN: observed.now}))
        if observed.now - record.since[SEEN] < LAST_REQUESTS_SECONDS:
            return Decision(record)
        return Decision(msgspec.structs.replace(record, since={**record.since, WITHDRAWN: observed.now}))
    began = record.since.get(WITHDRAWN, record.since.get(ABORTING, observed.now))
    if _superfluous(record, observed) and observed.now - began < ABORT_SECONDS:
        return Decision(record)
    # The event with the reason was written with the decision to abort.
    return Decision(enter(record, ABORTED, observed.now))
