"""Whether a worker serves what the committed epoch assigns to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.state.assignment import NO_PLACEMENTS, Placements, is_placed
from isochrone.control.state.records import Assignment, EpochRecord


def assigned(
    epoch: EpochRecord, pool: str, worker: str = "", placements: Placements = NO_PLACEMENTS
) -> dict[str, Assignment]:
    """By model: what the epoch assigns to the workers of a pool; in a planned pool, to one worker."""
    return {
        name: model
        for name, model in epoch.models.items()
        if pool in model.pools and is_placed(worker, pool, name, placements)
    }


def has_committed(served: Mapping[tuple[str, str], str], models: Mapping[str, Assignment]) -> bool:
    """Whether a worker has every committed version, with the committed digest. ``served``: its digests."""
    for name, assignment in models.items():
        digest = served.get((name, assignment.version))
        # An absent digest, or one of another kind (of a Triton's configuration), proves nothing.
        if digest is None or (digest and assignment.digest and digest != assignment.digest and _is_ours(assignment)):
            return False
    return True


def _is_ours(assignment: Assignment) -> bool:
    return not assignment.digest.startswith("config-")
