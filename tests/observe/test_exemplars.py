"""Exemplars: which traces are kept, and where they are shown."""

from __future__ import annotations

import numpy as np
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics

from isochrone.multiprocess.metrics.page_sum import add_up, as_open_metrics, parse, render
from isochrone.observe.exemplars import Exemplar
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.metrics.page_formats import PLAIN_WITH_EXEMPLARS
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, STAGES, Histogram, ModelSnapshot, ServerSnapshot

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
NAME = "isochrone_request_duration_seconds"


def exposition(exemplars: dict[int, Exemplar], count: int = 5) -> Exposition:
    counts = np.zeros(len(BUCKET_BOUNDS_NS) + 1, np.int64)
    counts[3] = counts[-1] = count
    stages = {stage: Histogram(counts, 1000, exemplars if stage == "request" else {}) for stage in STAGES}
    model = ModelSnapshot('m"}', "1", "d", 0, count, {}, {}, count, count, 0, 0, 0, 0, stages)
    return Exposition(lambda: ServerSnapshot((model,)), machine=False)


def shown(page: str) -> dict[tuple[str, str], tuple[str, float, float]]:
    """By stage and bound."""
    return {
        (sample.labels["stage"], sample.labels["le"]): (
            sample.exemplar.labels["trace_id"],
            sample.exemplar.value,
            float(sample.exemplar.timestamp),
        )
        for family in parse_open_metrics(page)
        for sample in family.samples
        if sample.exemplar is not None
    }


def test_only_open_metrics_shows_them() -> None:
    last = len(BUCKET_BOUNDS_NS)
    made = exposition({3: Exemplar(TRACE, 140_000, 1_500_000_000), last: Exemplar(TRACE, 12_000_000_000, 10**9)})
    found = shown(made.render(OPEN_METRICS)[0].decode())
    assert found == {
        ("request", str(BUCKET_BOUNDS_NS[3] / 1e9)): (TRACE, 0.00014, 1.5),
        ("request", "+Inf"): (TRACE, 12.0, 1.0),
    }
    assert TRACE not in made.render("")[0].decode()
    assert TRACE not in made.render("text/plain")[0].decode()


def test_of_several_processes_the_newest_is_shown() -> None:
    other = TRACE[::-1]
    older = exposition({3: Exemplar(TRACE, 140_000, 2 * 10**9), 4: Exemplar(TRACE, 180_000, 10**9)})
    newer = exposition({3: Exemplar(other, 130_000, 3 * 10**9)})
    pages = {
        number: parse(made.render(PLAIN_WITH_EXEMPLARS)[0].decode()) for number, made in enumerate((older, newer), 1)
    }
    for order in (pages, dict(reversed(pages.items()))):
        total = add_up(order)
        assert "trace_id" not in render(total), "plain text has none"
        found = shown(render(as_open_metrics(total)))
        assert found == {
            ("request", str(BUCKET_BOUNDS_NS[3] / 1e9)): (other, 0.00013, 3.0),
            ("request", str(BUCKET_BOUNDS_NS[4] / 1e9)): (TRACE, 0.00018, 1.0),
        }
        values = total.families[NAME].samples
        assert sum(value for (name, _), value in values.items() if name == f"{NAME}_count") == 10 * 2 * len(STAGES)


def test_the_format_between_processes_is_plain_text_otherwise() -> None:
    made = exposition({3: Exemplar(TRACE, 140_000, 1)})
    plain = made.render("")[0].decode()
    lines = made.render(PLAIN_WITH_EXEMPLARS)[0].decode().split("\n")
    # The figures of the process itself change from page to page.
    kept = [line for line in lines if not line.startswith("# EXEMPLAR ") and "process_" not in line]
    assert kept == [line for line in plain.split("\n") if "process_" not in line]
