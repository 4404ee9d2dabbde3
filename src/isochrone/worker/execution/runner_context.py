"""The collaborators and limits of one version's runner, from ``catalog.serving`` to the class that uses each of them.

Only constructors read it: what runs requests reads the runner's own attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isochrone.worker.execution.inline.compute_stage import ComputeStage
    from isochrone.worker.execution.inline.watchdog import InlineWatchdog
    from isochrone.worker.scheduling.batch_queue import QueueRules
    from isochrone.worker.scheduling.latency_curve import LatencyCurve
    from isochrone.worker.statistics import ModelStatistics


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """The version to run, the objects that its runner reports to, and the rules that it follows."""

    #: The model's.
    name: str
    #: Of the queue before the instances; sequences have a batcher of their own instead.
    rules: QueueRules
    curve: LatencyCurve
    statistics: ModelStatistics
    #: Of the loop's thread, which all versions share.
    watchdog: InlineWatchdog
    stage: ComputeStage
    #: Called once per request, whatever its outcome.
    request_ended: Callable[[], None]
    #: Limit of one run; 0: none.
    execution_timeout_ns: int = 0
    #: Whether answers are sent in the order in which requests came; of ordinary models only.
    preserve_ordering: bool = False
