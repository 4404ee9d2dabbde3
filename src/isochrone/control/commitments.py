"""An epoch record as a gateway serves by it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.records import Assignment, EpochRecord
from isochrone.gateway.commitment import Commitment, stage_header
from isochrone.gateway.traffic.canary import CanaryRules


def commitments(record: EpochRecord) -> dict[str, Commitment]:
    """What is committed of each model."""
    return {name: _commitment(record, assignment) for name, assignment in record.models.items()}


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
    """What the stages of one version of an ensemble run: the canary what is tried, the previous version what was served
    before where that changed with it, and otherwise what is served."""
    if not assignment.stages:
        return b""
    tried = assignment.canary is not None and version == assignment.canary.version
    versions = {}
    for name in assignment.stages:
        stage = models.get(name)
        if stage is not None:
            changed_with_it = stage.epoch == assignment.epoch and bool(stage.previous)
            if tried and stage.canary is not None:
                versions[name] = stage.canary.version
            elif version == assignment.previous and changed_with_it:
                versions[name] = stage.previous
            else:
                versions[name] = stage.version
    return stage_header(versions)
