"""Replacement of instances whose run does not end.

A thread cannot be killed: an abandoned instance keeps its thread and its copy of the model until the run ends, if ever.
Runners decide when to abandon an instance; this module has a new one made and limits the number of hung threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from isochrone.errors import IsochroneError, Unavailable

if TYPE_CHECKING:
    from isochrone.worker.execution.instances.instance import Instance

log = structlog.get_logger(__name__)

#: Limit of abandoned runs that have not ended; each keeps a thread and a copy of the model.
_MAX_HUNG = 8

#: Receives the new instance, or the error.
TakeInstance = Callable[["Instance | IsochroneError"], None]
#: Makes a new instance with the number of another on a thread, then calls back on the loop.
MakeInstance = Callable[[int, TakeInstance], None]


class Replacements:
    """The replacements of one model version. On the loop's thread."""

    __slots__ = ("_hung", "_make", "_model")

    def __init__(self, model: str, make: MakeInstance) -> None:
        self._model = model
        self._make = make
        #: Abandoned instances that are still in their last run.
        self._hung: set[Instance] = set()

    def abandon(self, instance: Instance, take: TakeInstance) -> None:
        """Abandons an instance and has a new one made; ``take`` receives it, or the error."""
        instance.abandoned = True
        self._hung.add(instance)
        hung = len(self._hung)
        if hung > _MAX_HUNG:
            log.error("too many hung runs; the instance is not replaced", model=self._model, hung=hung)
            take(Unavailable(f"model '{self._model}': {hung} runs hang; no instance is left"))
            return
        log.warning("a run hung; its instance is being replaced", model=self._model, hung=hung)

        def made(result: Instance | IsochroneError) -> None:
            if isinstance(result, IsochroneError):
                log.error("a hung instance was not replaced", model=self._model, error=str(result))
            take(result)

        self._make(instance.number, made)

    def ended(self, instance: Instance) -> None:
        """The run of an abandoned instance has ended: its thread can end now."""
        if instance in self._hung:
            self._hung.discard(instance)
            instance.close()


def discard(instance: Instance) -> None:
    """Frees an instance that is no longer needed, on a thread."""
    threading.Thread(target=instance.close, name="closing", daemon=True).start()
