"""The metrics of models that generate tokens. A server without such a model has none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, GenerationSnapshot, Histogram

_LABELS: Final = ("model", "version")
_LE: Final = (*(str(bound / 1e9) for bound in BUCKET_BOUNDS_NS), "+Inf")
_REFUSALS: Final = ("deadline_exceeded", "queue_full")

_Value = Callable[[GenerationSnapshot], int]
_COUNTERS: Final[tuple[tuple[str, str, _Value], ...]] = (
    ("isochrone_generation_tokens", "Tokens of answers", lambda each: each.generated_tokens),
    ("isochrone_generation_prompt_tokens", "Tokens of prompts", lambda each: each.prompt_tokens),
    (
        "isochrone_generation_reused_tokens",
        "Tokens whose keys and values were found in the cache",
        lambda each: each.reused_tokens,
    ),
    ("isochrone_generation_late_tokens", "Tokens that came after their deadline", lambda each: each.late_tokens),
    ("isochrone_generation_steps", "Steps of the model", lambda each: each.steps),
    (
        "isochrone_generation_preemptions",
        "Sequences that lost their blocks to others and are computed again",
        lambda each: each.preemptions,
    ),
)
_GAUGES: Final[tuple[tuple[str, str, _Value], ...]] = (
    ("isochrone_generation_running", "Sequences that steps compute", lambda each: each.running),
    ("isochrone_generation_waiting", "Sequences that wait for a row or for blocks", lambda each: each.waiting),
    ("isochrone_generation_blocks", "Blocks of the cache", lambda each: each.blocks),
    ("isochrone_generation_blocks_in_use", "Blocks that sequences hold", lambda each: each.blocks_in_use),
)
_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[GenerationSnapshot], Histogram]], ...]] = (
    (
        "isochrone_generation_time_to_first_token_seconds",
        "From a request's arrival to its first token",
        lambda each: each.first_token,
    ),
    (
        "isochrone_generation_inter_token_seconds",
        "From each token of an answer to the next",
        lambda each: each.between_tokens,
    ),
)


def generation_metrics(models: Sequence[GenerationSnapshot]) -> Iterator[Metric]:
    if not models:
        return
    for name, documentation, value in _COUNTERS:
        counter = CounterMetricFamily(name, documentation, labels=_LABELS)
        for model in models:
            counter.add_metric((model.model_name, model.model_version), value(model))
        yield counter
    for name, documentation, value in _GAUGES:
        gauge = GaugeMetricFamily(name, documentation, labels=_LABELS)
        for model in models:
            gauge.add_metric((model.model_name, model.model_version), value(model))
        yield gauge
    refusals = CounterMetricFamily(
        "isochrone_generation_refusals",
        "Requests refused since their deadline cannot be met, or since too many wait",
        labels=(*_LABELS, "code"),
    )
    for model in models:
        for code in _REFUSALS:
            refusals.add_metric((model.model_name, model.model_version, code), model.refusals.get(code, 0))
    yield refusals
    for name, documentation, durations in _HISTOGRAMS:
        histogram = HistogramMetricFamily(name, documentation, labels=_LABELS)
        for model in models:
            taken = durations(model)
            buckets = list(zip(_LE, accumulate(taken.counts.tolist()), strict=True))
            histogram.add_metric((model.model_name, model.model_version), buckets, taken.sum_ns / 1e9)
        yield histogram
