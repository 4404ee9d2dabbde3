"""Whether a worker has to have a model. Pure.

Every worker of a model's pools has it, except in planned pools: there, the placement record of the pool names its
workers. All parts of the control plane that ask this question ask it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import PlacementRecord

#: By planned pool.
Placements = Mapping[str, PlacementRecord]

NO_PLACEMENTS: Placements = {}


def is_assigned(worker: WorkerRecord, model: str, pools: Iterable[str], placements: Placements) -> bool:
    """``pools``: those that serve the model."""
    return worker.pool in pools and is_placed(worker.name, worker.pool, model, placements)


def is_placed(worker: str, pool: str, model: str, placements: Placements) -> bool:
    """The same of a worker in one of the model's pools."""
    placement = placements.get(pool)
    return placement is None or worker in placement.replicas.get(model, ())
