"""Requests about rollouts: start, rollback, abort, promote. Pure.

What a request leaves open (cutover, canary, comparison, pools, memory) is filled in from the applied fleet.yaml, so
that the record has everything that the leader needs, whatever is applied later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from isochrone.control.fleet.planning.lonely_stages import lonely_stages, without_traffic
from isochrone.control.fleet.settings.model_spec import Canary, Compare, Model, overlay
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.requests.decisions import Conflict, Decision, RequestContext, applied_fleet, one_of
from isochrone.control.state.codec import encode
from isochrone.control.state.events import event
from isochrone.control.state.records import EventRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    CANARY,
    DONE,
    DRAINING,
    FAST,
    PENDING,
    STRICT,
    SWITCHING,
    Change,
    RolloutRecord,
)
from isochrone.control.state.view import View
from isochrone.errors import InvalidArgument, NotFound
from isochrone.models.repository.versions import version_number
from isochrone.settings.expectations import problems_of
from isochrone.settings.problems import dotted
from isochrone.settings.sections import Section
from isochrone.store import base

_Rule = TypeVar("_Rule", bound=Section)
#: A rule in a request: its fields as in fleet.yaml, whether there is one at all, or None for the file's.
RequestedRule = Mapping[str, Any] | bool | None


def start_rollout(
    view: View,
    changes: Mapping[str, str],
    context: RequestContext,
    *,
    cutover: str | None = None,
    canary: RequestedRule = None,
    compare: RequestedRule = None,
) -> Decision[RolloutRecord]:
    """Start a rollout: all its models change at once, or none does."""
    _, fleet = applied_fleet(view)
    assignments = view.assignments
    if not changes:
        raise InvalidArgument("changes: expected at least one model and its version, given none")
    for model, version in changes.items():
        one_of(model, sorted({*fleet.models, *assignments}), "model")
        if version_number(version) is None:
            raise InvalidArgument(f"changes.{model}: expected a version, a positive integer, given '{version}'")
        if model in assignments and assignments[model].version == version:
            raise Conflict(f"model {model} serves version {version} already")
    filled = {model: _change(view, fleet, model, version) for model, version in changes.items()}
    _check_no_other_rollout(view, _together(fleet, filled))
    models = [fleet.of(model) for model in filled]
    unserved = [model for model, change in filled.items() if not change.before]
    # Without a served version there is nothing to compare with.
    canaries = [model.rollout.canary for model in models] if not unserved else []
    compares = [model.rollout.compare for model in models] if not unserved else []
    for name, requested in (("canary", canary), ("compare", compare)):
        if unserved and requested:
            raise InvalidArgument(f"{name}: expected none for {unserved[0]}, which serves no version yet, given one")
    canary_rule = _rule(canary, Canary, "canary", canaries)
    compare_rule = _rule(compare, Compare, "compare", compares)
    if canary_rule is not None:
        for stage, ensembles in lonely_stages(
            filled, {name: each.stages for name, each in assignments.items()}
        ).items():
            raise InvalidArgument(f"canary: expected none, since {without_traffic(stage, ensembles)}, given one")
    for name, rule in (("canary", canary_rule), ("compare", compare_rule)):
        for group in fleet.gateways_without_metrics if rule is not None else ():
            raise InvalidArgument(
                f"{name}: expected none, since gateways.{group} has no metrics page (metrics_port: -1) where its "
                "counts and samples could be read, given one"
            )
    identity, conditions, counted = next_identity(view)
    record = RolloutRecord(
        identity=identity,
        changes=filled,
        kind="first" if len(unserved) == len(filled) else "version",
        cutover=_cutover(cutover, models),
        canary=canary_rule.rule() if canary_rule is not None else None,
        compare=compare_rule.rule() if compare_rule is not None else None,
        prepare_seconds=max(model.rollout.prepare_seconds for model in models),
        by=context.who,
        at=context.at,
        since={PENDING: context.at},
    )
    return _created(view, record, (*conditions, view.unchanged(view.keys.fleet)), counted, context)


def rollback(view: View, model: str, context: RequestContext) -> Decision[RolloutRecord]:
    """Roll back to the previous version: the model, and all models that changed together with it.

    While a new version is in canary, its rollout is aborted instead. A committed rollout that only drains does not
    block a rollback.
    """
    _, fleet = applied_fleet(view)
    assignments = view.assignments
    one_of(model, sorted({*fleet.models, *assignments}), "model")
    for other in view.open_rollouts:
        if model in other.changes and other.state == CANARY:
            return abort(view, other.identity, f"rollback of {model}", context)
    assignment = assignments.get(model)
    if assignment is None or not assignment.previous:
        raise NotFound(f"model {model} has no previous version to go back to")
    filled = {name: _change(view, fleet, name, assignments[name].previous) for name in _changed_with(view, model)}
    _check_no_other_rollout(view, filled, except_state=DRAINING)
    models = [fleet.of(name) for name in filled]
    identity, conditions, counted = next_identity(view)
    record = RolloutRecord(
        identity=identity,
        changes=filled,
        kind="rollback",
        cutover=_cutover(None, models),
        prepare_seconds=max(each.rollout.prepare_seconds for each in models),
        by=context.who,
        at=context.at,
        since={PENDING: context.at},
    )
    return _created(view, record, conditions, counted, context)


def abort(view: View, identity: str, reason: str, context: RequestContext) -> Decision[RolloutRecord]:
    """Abort a rollout: the new version is no longer visible."""
    record = find_rollout(view, identity)
    if record.is_over:
        way = "; go back with 'isochrone rollout rollback MODEL'" if record.state == DONE else ""
        raise Conflict(f"rollout {identity} is {record.state} already{way}")
    if record.state == DRAINING:
        models = ", ".join(record.changes)
        raise Conflict(f"rollout {identity} is committed; go back with 'isochrone rollout rollback' of {models}")
    if record.state == ABORTING or record.abort_asked:
        return Decision(record)
    given = reason.strip()
    changed = msgspec.structs.replace(
        record, abort_asked=f"{given} (by {context.who})" if given else f"by {context.who}"
    )
    return _rewritten(view, changed, "rollout abort asked", given, context)


def promote(view: View, identity: str, context: RequestContext) -> Decision[RolloutRecord]:
    """Promote a canary to all traffic now, whatever its figures."""
    record = find_rollout(view, identity)
    if record.abort_asked or record.state == ABORTING:
        raise Conflict(f"rollout {identity} is being aborted: {record.abort_asked or record.reason}")
    if record.state != CANARY:
        raise Conflict(f"rollout {identity} is {record.state}; only one in canary can be promoted")
    if record.promote_asked:
        return Decision(record)
    changed = msgspec.structs.replace(record, promote_asked=True)
    return _rewritten(view, changed, "canary promoted", f"at step {record.step + 1}", context)


def find_rollout(view: View, identity: str) -> RolloutRecord:
    record = view.rollout(identity)
    if record is None:
        latest = ", ".join(each.identity for each in view.rollouts[-5:]) or "none"
        raise NotFound(f"rollout '{identity}': expected one that exists; the latest: {latest}")
    return record


def next_identity(view: View) -> tuple[str, tuple[base.Compare, ...], base.Put]:
    """The identity of the next rollout; the conditions that it is still free and the epoch is unchanged; the new
    count."""
    key = view.keys.rollout_number
    number = view.rollout_number + 1
    conditions = (view.unchanged(key), view.unchanged(view.keys.epoch))
    return f"r{number}", conditions, base.Put(key, str(number).encode())


def _created(
    view: View, record: RolloutRecord, conditions: tuple[base.Compare, ...], counted: base.Put, context: RequestContext
) -> Decision[RolloutRecord]:
    key = view.keys.rollout(record.identity)
    what = "rollback started" if record.kind == "rollback" else "rollout started"
    detail = f"{record.summary}; {record.cutover}{', canary' if record.canary else ''}"
    reported = event(view.keys, EventRecord(context.at, context.who, what, record.identity, detail), context.unique)
    operations = (base.Put(key, encode(record)), counted, reported)
    return Decision(record, (*conditions, base.Compare(key, 0)), operations)


def _change(view: View, fleet: Fleet, model: str, version: str) -> Change:
    assignment = view.assignments.get(model)
    settings = fleet.of(model)
    pools = fleet.pools_of(model)
    return Change(
        version=version,
        before=assignment.version if assignment is not None else "",
        pools=pools,
        stages=settings.stages or (assignment.stages if assignment is not None else ()),
        memory=settings.memory,
        left=tuple(pool for pool in assignment.pools if pool not in pools) if assignment is not None else (),
    )


def _together(fleet: Fleet, changes: Mapping[str, Change]) -> set[str]:
    """The models that change, those that change with them by fleet.yaml, and their stages."""
    found: set[str] = set()
    waiting = list(changes)
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            partners = [name for name, other in fleet.models.items() if model in other.changes_with]
            waiting += [*partners, *fleet.of(model).changes_with]
    return found.union(*(change.stages for change in changes.values()))


def _changed_with(view: View, model: str) -> list[str]:
    """The model, and the other models of the rollout that brought its version, unless they have changed since."""
    assignments = view.assignments
    for record in reversed(view.rollouts):
        change = record.changes.get(model)
        if change is None or not record.epoch or change.version != assignments[model].version or not change.is_new:
            continue
        return [
            name
            for name, other in record.changes.items()
            if name in assignments
            and (assignments[name].version, assignments[name].previous) == (other.version, other.before)
            and other.before
        ] or [model]
    return [model]


def _check_no_other_rollout(view: View, models: Iterable[str], except_state: str = "") -> None:
    for other in view.open_rollouts:
        taken = sorted(set(models) & set(other.changes))
        if taken and other.state != except_state:
            way = "" if other.state in (SWITCHING, DRAINING) else f", or 'isochrone rollout abort {other.identity}'"
            raise Conflict(
                f"rollout {other.identity} is changing {', '.join(taken)} ({other.state}); wait for its end{way}"
            )


def _cutover(requested: str | None, models: Sequence[Model]) -> str:
    """As requested; otherwise strict if one of the models is strict in fleet.yaml."""
    if requested is None:
        return STRICT if any(model.rollout.cutover == STRICT for model in models) else FAST
    if requested not in (FAST, STRICT):
        raise InvalidArgument(f"cutover: expected {FAST} or {STRICT}, given '{requested}'")
    return requested


def _rule(requested: RequestedRule, kind: type[_Rule], name: str, of_models: Sequence[_Rule | None]) -> _Rule | None:
    """The requested rule, laid over the first that the file has for one of the models."""
    settled = next((rule for rule in of_models if rule is not None), None)
    if requested is None:
        return settled
    if requested is False:
        return None
    if requested is True:
        return settled or kind()
    try:
        return kind.model_validate(overlay(settled.model_dump() if settled is not None else {}, dict(requested)))
    except ValidationError as error:
        problem = problems_of(error, kind)[0]
        key = dotted((name, *problem.path))
        raise InvalidArgument(f"{key}: expected {problem.expected}, given {problem.given}") from None


def _rewritten(
    view: View, record: RolloutRecord, what: str, detail: str, context: RequestContext
) -> Decision[RolloutRecord]:
    key = view.keys.rollout(record.identity)
    reported = event(view.keys, EventRecord(context.at, context.who, what, record.identity, detail), context.unique)
    return Decision(record, (view.unchanged(key),), (base.Put(key, encode(record)), reported))
