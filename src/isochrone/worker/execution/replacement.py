"""Instances given up inside a run that does not end, and the instances that take their place.

A thread cannot be killed: it stays behind with what it holds until its run ends, if ever. Runners decide when to give
up; this sees to it that a successor is made, and that no model collects threads without end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from isochrone.errors import IsochroneError, Unavailable

if TYPE_CHECKING:
    from isochrone.worker.execution.instance import Instance

log = structlog.get_logger()

#: Runs given up that have not ended; each keeps a thread and a copy of the model.
_MAX_HUNG = 8

#: What takes a new instance, or what went wrong.
TakeInstance = Callable[["Instance | IsochroneError"], None]
#: Makes a new instance off the loop's thread, then calls back on it.
MakeInstance = Callable[[TakeInstance], None]


class Replacements:
    """Of one model version. All on the loop's thread."""

    __slots__ = ("_hung", "_make", "_model")

    def __init__(self, model: str, make: MakeInstance) -> None:
        self._model = model
        self._make = make
        #: Given up, and still inside their last run.
        self._hung: set[Instance] = set()

    def give_up(self, instance: Instance, take: TakeInstance) -> None:
        """Leaves an instance to itself and has another made; ``take`` is called when that is there, or will not be."""
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

        self._make(made)

    def ended(self, instance: Instance) -> None:
        """The run of an abandoned instance has ended after all: its thread is free to end now."""
        if instance in self._hung:
            self._hung.discard(instance)
            instance.close()


def discard(instance: Instance) -> None:
    """Frees an instance nobody waits for any more, off the loop's thread."""
    threading.Thread(target=instance.close, name="closing", daemon=True).start()
