"""Log lines of failures: enough to find the fault, never a line per request.

Runners report failures on the loop's thread. Each version logs at most one warning a minute for each kind of failure,
with the number of those not shown since the last. A traceback that came with the error, as of Triton's models and of
models in processes of their own, is in the warning; others are debug lines (``--log-verbose 1``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from isochrone.clock import now_ns
from isochrone.errors import Internal, IsochroneError
from isochrone.observe.failure_kinds import FailureKinds
from isochrone.observe.sparing import Sparing

if TYPE_CHECKING:
    from isochrone.worker.execution.instances.batch import Batch

log = structlog.get_logger(__name__)


class FailureLog:
    """The failures of one model version."""

    __slots__ = ("_failed", "_model", "_retried", "_version")

    def __init__(self, model: str, version: str) -> None:
        self._model = model
        self._version = version
        self._failed = FailureKinds()
        self._retried = Sparing()

    def request_failed(self, error: IsochroneError) -> None:
        """A request was answered with an error. Only a fault of the model or of the worker is logged."""
        if not isinstance(error, Internal):
            return
        held_back = self._failed.lets_through(error, now_ns())
        if held_back is None:
            return
        about = {"model": self._model, "version": self._version, "error": str(error), "not_shown": held_back}
        traceback = "\n".join(getattr(error, "__notes__", ()))
        if traceback:
            log.warning("model failed", **about, exception=traceback)
            return
        log.warning("model failed", **about)
        log.debug("traceback of the failure", model=self._model, version=self._version, exc_info=error)

    def batch_retried(self, batch: Batch) -> None:
        """The requests of a failed batch were run one by one."""
        held_back = self._retried.lets_through(now_ns())
        if held_back is None:
            return
        log.warning(
            "a batch failed and was run again request by request",
            model=self._model,
            version=self._version,
            requests=len(batch.requests),
            failed_alone=len(batch.errors),
            error=f"{type(batch.retried).__name__}: {batch.retried}",
            not_shown=held_back,
        )
        log.debug("traceback of the failure", model=self._model, version=self._version, exc_info=batch.retried)
