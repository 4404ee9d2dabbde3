"""Translates an epoch record into the commitments that a gateway serves. Pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.traffic.canary import CanaryRules
from isochrone.protocol.headers.stages import stages_value

#: Models looked at in one step, and what one costs that has changed: some 0.4 µs and 3 µs each.
_LOOKED_AT_PER_STEP, _CHANGED = 512, 8


def commitments(
    record: EpochRecord, before: tuple[EpochRecord, Mapping[str, Commitment]] | None = None
) -> Generator[None, None, dict[str, Commitment]]:
    """Return them by model, made in steps. ``before``: an earlier record, and what this function made of it: where
    nothing has changed, the commitment is the same object, so that a gateway looks at the changed ones alone."""
    known_record, known = before or (EpochRecord(0), {})
    found = {}
    looked = 0
    for name, assignment in record.models.items():
        commitment = known.get(name)
        looked += 1
        # The stages of an ensemble are assignments of their own.
        if commitment is None or assignment.stages or _differs(known_record.models.get(name), assignment):
            commitment = _same(commitment, _commitment(record, assignment))
            looked += _CHANGED
        found[name] = commitment
        if looked >= _LOOKED_AT_PER_STEP:
            looked = 0
            yield
    return found


def _differs(known: Assignment | None, assignment: Assignment) -> bool:
    return known is not assignment and known != assignment


def _same(known: Commitment | None, made: Commitment) -> Commitment:
    """The known one, if the two differ in their epochs alone."""
    return known if known is not None and replace(made, epoch=known.epoch) == known else made


def _commitment(record: EpochRecord, assignment: Assignment) -> Commitment:
    digests = {assignment.version: assignment.digest}
    if assignment.previous:
        digests.setdefault(assignment.previous, assignment.previous_digest)
    split = assignment.canary
    canary = None
    if split is not None:
        digests[split.version] = split.digest
        canary = CanaryRules(split.version, assignment.version, split.weight, split.sticky, split.header)
    stages = {version: header for version in digests if (header := _stages(record.models, assignment, version))}
    return Commitment(record.epoch, assignment.version, digests, canary, stages)


def _stages(models: Mapping[str, Assignment], assignment: Assignment, version: str) -> bytes:
    """The versions that the stages of one version of an ensemble run, and their stages in turn: for the canary the
    stages' canaries, for the previous version the stages' previous versions if they changed with it, and otherwise the
    committed ones."""
    if not assignment.stages:
        return b""
    tried = assignment.canary is not None and version == assignment.canary.version
    versions = {}
    to_see = list(assignment.stages)
    while to_see:
        name = to_see.pop()
        stage = models.get(name)
        # Each stage once: a circle, which no worker would load, ends here.
        if stage is None or stage is assignment or name in versions:
            continue
        to_see += stage.stages
        changed_with_it = stage.epoch == assignment.epoch and bool(stage.previous)
        if tried and stage.canary is not None:
            versions[name] = stage.canary.version
        elif version == assignment.previous and changed_with_it:
            versions[name] = stage.previous
        else:
            versions[name] = stage.version
    return stages_value(versions)
