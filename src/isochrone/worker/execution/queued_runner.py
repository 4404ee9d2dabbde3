"""The base of ``BatchRunner`` and ``StreamRunner``: a runner with a queue before its instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from isochrone.errors import IsochroneError
from isochrone.worker.execution.instances.instance import Instance
from isochrone.worker.execution.instances.replacement import MakeInstance, discard
from isochrone.worker.execution.runner import Runner
from isochrone.worker.scheduling.batch_queue import BatchQueue

if TYPE_CHECKING:
    from isochrone.worker.execution.runner_context import RunnerContext


class QueuedRunner(Runner, ABC):
    """Runs one version of a stateless model."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self.queue = BatchQueue(context.rules, context.curve)
        self._rules = context.rules
        self._idle: list[Instance] = []
        #: The queue does not know yet which instances are busy; it needs to, before it is used.
        self._busy_changed = False

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        super().start(instances, replacement)
        self._idle = list(instances)
        self.queue = BatchQueue(self._rules, self.curve, len(instances))

    @abstractmethod
    def _pump(self) -> None:
        """Starts the batches that may start now."""

    @property
    def pending(self) -> int:
        return self.queue.pending

    def estimated_wait(self, now: int) -> int:
        self._note_busy()
        return self.queue.estimated_wait(now)

    def estimated_run(self) -> int:
        self._note_busy()
        return self.queue.estimated_run()

    def _note_busy(self) -> None:
        if self._busy_changed:
            self._update_busy()

    def _update_busy(self) -> None:
        self._busy_changed = False
        idle = self._idle
        self.queue.occupy([0 if instance in idle else instance.free_at for instance in self.instances] or [0])

    def _fail_rejected(self) -> None:
        rejected, self.queue.rejected = self.queue.rejected, []
        for request, error in rejected:
            self._fail(request, error)

    def _replace(self, instance: Instance) -> None:
        """Abandons an instance and has it replaced."""
        self.instances.remove(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        self._update_busy()
        self._replacements.abandon(instance, self._replaced)

    def _replaced(self, made: Instance | IsochroneError) -> None:
        """The instance was replaced, or cannot be."""
        if isinstance(made, IsochroneError):
            if not self.instances:
                self._rejection = made
                for request in self.queue.clear():
                    self._fail(request, made)
            return
        if self._rejection is not None:
            discard(made)
            return
        self.instances.append(made)
        self._idle.append(made)
        self._update_busy()
        if self.queue.pending:
            self._pump()

    def close(self) -> None:
        """Frees the instances. It waits for their threads, so it must not run on the loop."""
        for instance in self.instances:
            instance.close()
