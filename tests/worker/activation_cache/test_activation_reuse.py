"""The activation cache in the way of requests: what becomes a key frame, and what is counted, without a server."""

from __future__ import annotations

from typing import Any

import numpy as np
from queued_requests import RecordedRequest
from structlog.testing import capture_logs

from isochrone.errors import ModelFailed
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.activation_cache.planes import Reduction
from isochrone.worker.activation_cache.reuse import ActivationReuse, SampledRequest
from isochrone.worker.activation_cache.settings import ActivationSettings
from isochrone.worker.statistics import ModelStatistics


def reuse_of(**changes: Any) -> ActivationReuse:
    changes = {"sample_share": 0.0, "age_ns": 10**15, **changes}
    settings = ActivationSettings("picture", Reduction("HW", 48, 0.0, 255.0), **changes)
    return ActivationReuse(settings, "digest", ModelStatistics("m", "1"))


def picture_request(seed: int = 0, camera: str = "front") -> RecordedRequest:
    picture = np.random.default_rng(seed).integers(0, 256, (1, 16, 16)).astype(np.uint8)
    plan = Plan("m", "", (("picture", "UINT8", picture.shape),), None, {"camera": camera})
    return RecordedRequest(plan, {"picture": picture})


def looked_up(reuse: ActivationReuse, request: InferRequest) -> InferRequest:
    found = reuse.look_up(request)
    assert found is not None
    return found


def outputs(value: float = 1.0, size: int = 4) -> dict[str, Any]:
    return {"y": np.full((1, size), value, np.float32)}


def misses(reuse: ActivationReuse) -> dict[str, int]:
    return {reason: count for reason, count in reuse.snapshot().misses.items() if count}


def test_a_computed_miss_answers_the_next() -> None:
    reuse = reuse_of()
    looked_up(reuse, picture_request()).complete(outputs())
    again = picture_request()
    assert reuse.look_up(again) is None
    assert again.answers[0]["y"][0, 0] == 1
    assert misses(reuse) == {"cold": 1}
    assert reuse.snapshot().hits["temporal"] == 1


def test_a_miss_that_failed_is_no_key_frame() -> None:
    reuse, request, error = reuse_of(), picture_request(), ModelFailed("out of luck")
    looked_up(reuse, request).fail(error)
    assert request.answers == [error]
    assert len(reuse._cache) == 0
    assert reuse.look_up(picture_request()) is not None
    assert misses(reuse) == {"cold": 1}


def test_a_cancelled_caller_leaves_no_key_frame_and_no_count() -> None:
    reuse, request = reuse_of(), picture_request()
    wrapped = looked_up(reuse, request)
    request.cancelled = True
    assert wrapped.cancelled
    wrapped.dropped()
    assert request.answers == ["dropped"]
    assert (len(reuse._cache), misses(reuse)) == (0, {})


def test_outputs_larger_than_the_cache_have_a_reason_and_one_warning() -> None:
    reuse = reuse_of(limit_bytes=20_000)
    with capture_logs() as logs:
        for _ in range(3):
            request = picture_request()
            looked_up(reuse, request).complete(outputs(size=10_000))
            assert request.answers[0]["y"].size == 10_000
    assert misses(reuse) == {"too_large": 3}
    (warned,) = logs
    assert warned["log_level"] == "warning"
    assert "activation_cache_bytes" in warned["event"]
    assert (warned["activation_cache_bytes"], warned["output_bytes"]) == (20_000, 40_000)


def test_the_time_of_a_samples_error_counts_as_comparison() -> None:
    reuse = reuse_of(sample_share=1.0)
    looked_up(reuse, picture_request()).complete(outputs())
    sampled = looked_up(reuse, picture_request())
    assert isinstance(sampled, SampledRequest)
    before = reuse.snapshot().comparison_ns
    sampled.complete(outputs(2.0))
    after = reuse.snapshot()
    assert after.comparison_ns > before
    assert (after.samples, after.largest_error) == (1, 0.5)
    assert misses(reuse) == {"cold": 1, "sampled": 1}


def test_a_sampled_hit_that_cannot_be_queued_is_answered() -> None:
    reuse = reuse_of(sample_share=1.0)
    stored = looked_up(reuse, picture_request())
    # A miss has nothing to answer with.
    assert not reuse.answer_rejected(stored)
    stored.complete(outputs(3.0))
    request = picture_request()
    assert reuse.answer_rejected(looked_up(reuse, request))
    assert request.answers[0]["y"][0, 0] == 3
    assert (reuse.snapshot().hits["temporal"], misses(reuse)) == (1, {"cold": 1})


def test_a_suspended_hit_that_cannot_be_queued_is_rejected() -> None:
    reuse = reuse_of(sample_share=1.0, error_budget=0.1)
    looked_up(reuse, picture_request()).complete(outputs())
    for _ in range(10):
        looked_up(reuse, picture_request()).complete(outputs(9.0))
    assert reuse.snapshot().is_alarmed
    request = picture_request()
    assert not reuse.answer_rejected(looked_up(reuse, request))
    assert request.answers == []
