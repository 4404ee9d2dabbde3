"""What a control plane has committed for one model: its version, the versions beside it, the stages of a pipeline.

A gateway that is led by a control plane serves what is committed and nothing else. One that is not has no commitments,
and goes by what its workers serve. Must never hold what would change without a new epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.gateway.traffic.canary import CanaryRules

#: A caller asks for the epoch an answer was given by, or for the versions of an epoch it has seen.
EPOCH_HEADER = b"x-isochrone-epoch"
#: Its value where any epoch will do.
ANY_EPOCH = b"current"


@dataclass(frozen=True, slots=True)
class Commitment:
    """One model in one epoch, and in those after it that do not change it."""

    #: The first of them.
    epoch: int
    version: str
    #: Of every version that may be asked for, this one included: its digest; "": its servers tell none.
    digests: Mapping[str, str] = field(default_factory=dict)
    canary: CanaryRules | None = None
    #: Model and version of each stage, as the header says it, by the ensemble's own version; empty: it has no stages.
    stages: Mapping[str, bytes] = field(default_factory=dict)
