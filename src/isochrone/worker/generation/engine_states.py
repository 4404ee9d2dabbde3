"""Which engines of a version take requests. Runs on the loop's thread.

An engine serves until it is lost, which is final, or hangs: a step does not end. An engine that hangs gets no requests
until the step ends after all. Without any engine, and during an unload, requests are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MILLISECOND
from isochrone.errors import IsochroneError, ModelFailed, Unavailable
from isochrone.worker.generation.hangs import HangWatch, step_limit

if TYPE_CHECKING:
    from isochrone.worker.generation.answers.job import Job
    from isochrone.worker.generation.engine import GenerationEngine

log = structlog.get_logger(__name__)

#: Ends the requests of an engine, each with the error that the function has for it.
EndRequests = Callable[["GenerationEngine", Callable[["Job"], IsochroneError]], None]


class EngineStates:
    """The engines of one version."""

    def __init__(
        self,
        name: str,
        engines: Sequence[GenerationEngine],
        execution_timeout_ns: int,
        end_requests: EndRequests,
        set_ready: Callable[[bool], None],
    ) -> None:
        """``set_ready``: told whether any engine can answer, when that changes."""
        #: Whatever their states.
        self.engines = tuple(engines)
        #: Those that take requests, and those that hang.
        self.serving = list(engines)
        self.hung: list[GenerationEngine] = []
        self._name = name
        self._execution_timeout_ns = execution_timeout_ns
        self._end_requests = end_requests
        self._set_ready = set_ready
        self._watches = {engine: HangWatch() for engine in engines}
        #: The error of every request once the version is being unloaded.
        self._rejection: IsochroneError | None = None

    def drop_lost_and_require_serving(self) -> None:
        """Drops engines that are lost, whose requests fail; raises unless one is left that takes requests."""
        if self._rejection is not None:
            raise self._rejection
        if any(engine.lost for engine in self.serving):
            self._drop_lost()
        if not self.serving:
            raise self._no_engine().not_begun()

    def check(self, now: int) -> None:
        """Notes engines that are lost, that hang, and that go on. Called about ten times a second."""
        self._drop_lost()
        for engine, watch in self._watches.items():
            began, limit_ns = engine.step_began, step_limit(engine.load, self._execution_timeout_ns)
            hangs = watch.hangs(began, now, limit_ns)
            if hangs and engine in self.serving:
                self._abandon(engine, now - began)
            elif not hangs and engine in self.hung:
                self._restore(engine)

    def reject(self, error: IsochroneError | None) -> IsochroneError:
        """Rejects further requests with this error, or, without one, since the version is being unloaded. Returns the
        error."""
        self._rejection = error = error or self._unloading()
        return error

    def release(self) -> None:
        """Rejects further requests, unless they are rejected already."""
        self._rejection = self._rejection or self._unloading()

    def abandon_running(self) -> None:
        """Has ``close`` not wait for steps that run: they may never end."""
        for engine in self.serving:
            if engine.step_began:
                engine.is_abandoned = True

    def close(self) -> None:
        """Frees the engines. It waits for their threads, so it must not run on the loop."""
        for engine in self.engines:
            engine.close()

    def _unloading(self) -> IsochroneError:
        return Unavailable(f"model '{self._name}' is being unloaded")

    def _no_engine(self) -> IsochroneError:
        lost = next((engine.lost for engine in self.engines if engine.lost), "")
        if lost:
            return Unavailable(lost).within(f"model '{self._name}'")
        return Unavailable(
            f"model '{self._name}': no instance is left, since a step does not end: load the model again, or restart "
            "the worker"
        )

    def _drop_lost(self) -> None:
        """Engines that cannot compute any more get no requests, and those that they have fail."""
        lost = [engine for engine in self.serving if engine.lost]
        for engine in lost:
            self.serving.remove(engine)
            # It may have ended some itself; then their errors are on their way.
            self._end_requests(engine, _lost_error(engine.lost))
        if lost and not self.serving:
            self._set_ready(False)

    def _abandon(self, engine: GenerationEngine, ran_ns: int) -> None:
        """A step does not end: its thread cannot be stopped, so nothing waits for it any more."""
        engine.is_abandoned = True
        self.serving.remove(engine)
        self.hung.append(engine)
        ran_ms = ran_ns // MILLISECOND
        log.error(
            "a step does not end; its instance gets no requests until it does. If it never ends, load the model again "
            "(its memory stays taken), or restart the worker",
            model=self._name,
            instance=engine.name,
            ran_ms=ran_ms,
            instances_left=len(self.serving),
        )
        error = ModelFailed(f"model '{self._name}': a step of instance '{engine.name}' does not end, after {ran_ms} ms")
        self._end_requests(engine, lambda _: error)
        if not self.serving:
            self._set_ready(False)

    def _restore(self, engine: GenerationEngine) -> None:
        """The step has ended after all. The requests that it had are over, and the engine knows."""
        self.hung.remove(engine)
        if self._rejection is not None:
            return
        engine.is_abandoned = False
        if engine.lost:
            return
        log.warning("a step that seemed to hang has ended", model=self._name, instance=engine.name)
        self.serving.append(engine)
        self._set_ready(True)


def _lost_error(reason: str) -> Callable[[Job], IsochroneError]:
    return lambda job: ModelFailed(reason) if job.is_known else Unavailable(reason).not_begun()
