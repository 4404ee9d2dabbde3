"""The activation cache of one served version, in the way of its requests: read before a request is queued, filled after
it was computed.

The comparison takes some 0.1 ms on the loop's thread, for requests that name a camera or a place; others pay for one
look into their parameters. Each version has a cache of its own, which ends with it: a new version never answers with
what another computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from isochrone.clock import now_ns
from isochrone.observe.snapshot import ActivationSnapshot
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters
from isochrone.worker.activation_cache.cache import CHANGED, COLD, EXPIRED, LOCAL, ActivationCache, Hit
from isochrone.worker.activation_cache.keys import ActivationKey, activation_keys
from isochrone.worker.activation_cache.planes import Plane
from isochrone.worker.activation_cache.sampling import ErrorMonitor, output_error
from isochrone.worker.activation_cache.settings import SPATIAL, TEMPORAL, ActivationSettings
from isochrone.worker.request_wrappers import RequestWrapper

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.statistics import ModelStatistics

_log = structlog.get_logger(__name__)

#: The parameters of an answer: how it came about, and the SSIM of its picture to the key frame.
OUTCOME: Final = "activation_cache"
SIMILARITY: Final = "activation_cache_similarity"

# Further reasons of a miss: several rows; values outside of the range, too few pixels or other channels; outputs that
# are larger than the cache; a hit that is computed to measure the error, and one that is computed because of the alarm.
ROWS, RANGE, TOO_LARGE, SAMPLED, SUSPENDED = "rows", "range", "too_large", "sampled", "suspended"
_REASONS: Final = (COLD, EXPIRED, CHANGED, LOCAL, ROWS, RANGE, TOO_LARGE, SAMPLED, SUSPENDED)


class ActivationReuse:
    """Only for the loop's thread."""

    def __init__(self, settings: ActivationSettings, digest: str, statistics: ModelStatistics) -> None:
        self._settings = settings
        self._digest = digest
        self._statistics = statistics
        self._axes = len(settings.reduction.layout)
        self._cache = ActivationCache(
            settings.limit_bytes, settings.age_ns, settings.similarity, settings.block_similarity
        )
        self._monitor = ErrorMonitor(settings.error_budget, settings.sample_share, digest)
        self._hits = dict.fromkeys((TEMPORAL, SPATIAL), 0)
        self._misses = dict.fromkeys(_REASONS, 0)
        self._saved_ns = self._comparison_ns = 0
        self._has_warned_of_size = False

    def look_up(self, request: InferRequest) -> InferRequest | None:
        """None: the request was answered. Otherwise the request to run: itself, or one that stores its answer."""
        settings = self._settings
        keys = activation_keys(request.plan, self._digest, settings.scopes, settings.grid)
        if not keys:
            return request
        started = now_ns()
        picture = request.inputs[settings.input_name]
        shape = picture.shape
        if any(length != 1 for length in shape[: -self._axes]):
            self._misses[ROWS] += 1
            return request
        plane = settings.reduction.plane(picture.reshape(shape[-self._axes :]))
        if plane is None:
            self._misses[RANGE] += 1
            return request
        found = self._cache.find(keys, plane, started)
        now = now_ns()
        self._comparison_ns += now - started
        if isinstance(found, str):
            return StoredRequest(request, self, keys, plane, started, found)
        if self._monitor.takes_sample():
            return SampledRequest(request, self, found, SUSPENDED if self._monitor.is_alarmed else SAMPLED)
        self._answer(request, found, started, now)
        return None

    def answer_rejected(self, request: InferRequest) -> bool:
        """Answers a sampled hit that the queue rejects with what it would have reused; False: it is none."""
        if not isinstance(request, SampledRequest) or request.reason != SAMPLED:
            return False
        now = now_ns()
        self._answer(request.original, request.found, now, now)
        return True

    def store(self, keys: list[ActivationKey], plane: Plane, outputs: Tensors, born: int, compute_ns: int) -> bool:
        """False: the outputs are larger than the cache."""
        if self._cache.insert(keys, plane, outputs, born, compute_ns):
            return True
        if not self._has_warned_of_size:
            self._has_warned_of_size = True
            _log.warning(
                "the outputs of one picture are larger than the activation cache, which cannot keep them; raise"
                " activation_cache_bytes",
                model=self._statistics.model_name,
                version=self._statistics.model_version,
                activation_cache_bytes=self._cache.limit_bytes,
                output_bytes=sum(tensor.nbytes for tensor in outputs.values()),
            )
        return False

    def record_miss(self, reason: str) -> None:
        self._misses[reason] += 1

    def record_error(self, found: Hit, computed: Tensors) -> None:
        """Adds what was computed for a hit to the error estimate."""
        monitor = self._monitor
        started = now_ns()
        error = output_error(found.frame.outputs, computed)
        self._comparison_ns += now_ns() - started
        if not monitor.record(error):
            return
        names = {"model": self._statistics.model_name, "version": self._statistics.model_version}
        figures = {"error": round(monitor.estimate, 4), "error_budget": self._settings.error_budget}
        if monitor.is_alarmed:
            _log.warning(
                "the activation cache causes more error than its budget and is suspended; raise"
                " activation_cache_similarity, or activation_cache_error_budget if the error is acceptable",
                **names,
                **figures,
            )
        else:
            _log.info("the activation cache is inside its error budget again and reuses outputs", **names, **figures)

    def clear(self) -> None:
        """Frees the memory of a version that was unloaded: plans of requests may keep the version itself."""
        self._cache.clear()

    def _answer(self, request: InferRequest, found: Hit, started: int, now: int) -> None:
        self._hits[found.scope] += 1
        self._saved_ns += found.frame.compute_ns
        request.dispatched = started
        request.compute_start = request.infer_start = now
        request.infer_end = request.compute_end = now
        self._statistics.record_reused(request, now)
        # The dictionary is a copy; its arrays are shared and read-only.
        request.complete(dict(found.frame.outputs), {OUTCOME: "hit", SIMILARITY: round(found.similarity.mean, 4)})

    def snapshot(self) -> ActivationSnapshot:
        cache, monitor = self._cache, self._monitor
        return ActivationSnapshot(
            model_name=self._statistics.model_name,
            model_version=self._statistics.model_version,
            hits=dict(self._hits),
            misses=dict(self._misses),
            entries=len(cache),
            bytes_used=cache.bytes_used,
            limit_bytes=cache.limit_bytes,
            evictions=cache.evictions,
            saved_ns=self._saved_ns,
            comparison_ns=self._comparison_ns,
            samples=monitor.samples,
            samples_over_budget=monitor.over_budget,
            error=monitor.estimate,
            largest_error=monitor.largest,
            error_budget=self._settings.error_budget,
            is_alarmed=monitor.is_alarmed,
        )


class StoredRequest(RequestWrapper):
    """A miss: its picture becomes a key frame when it is computed."""

    __slots__ = ("_keys", "_looked_up", "_plane", "_reason", "_reuse")

    def __init__(
        self,
        original: InferRequest,
        reuse: ActivationReuse,
        keys: list[ActivationKey],
        plane: Plane,
        looked_up: int,
        reason: str,
    ) -> None:
        super().__init__(original)
        self._reuse = reuse
        self._keys = keys
        self._plane = plane
        self._looked_up = looked_up
        self._reason = reason

    def keeps_on_device(self, output: str) -> bool:
        """The cache keeps arrays of the host."""
        return False

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        compute_ns = max(0, self.infer_end - self.infer_start)
        is_stored = self._reuse.store(self._keys, self._plane, outputs, self._looked_up, compute_ns)
        self._reuse.record_miss(self._reason if is_stored else TOO_LARGE)
        super().complete(outputs, {**parameters, OUTCOME: "miss"})

    def fail(self, error: IsochroneError) -> None:
        self._reuse.record_miss(self._reason)
        super().fail(error)


class SampledRequest(RequestWrapper):
    """A hit that is computed nevertheless, and compared with what would have been reused."""

    __slots__ = ("_reuse", "found", "reason")

    def __init__(self, original: InferRequest, reuse: ActivationReuse, found: Hit, reason: str) -> None:
        super().__init__(original)
        self._reuse = reuse
        self.found = found
        self.reason = reason

    @property
    def original(self) -> InferRequest:
        return self._original

    def keeps_on_device(self, output: str) -> bool:
        return False

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._reuse.record_miss(self.reason)
        self._reuse.record_error(self.found, outputs)
        similarity = round(self.found.similarity.mean, 4)
        super().complete(outputs, {**parameters, OUTCOME: self.reason, SIMILARITY: similarity})

    def fail(self, error: IsochroneError) -> None:
        self._reuse.record_miss(self.reason)
        super().fail(error)
