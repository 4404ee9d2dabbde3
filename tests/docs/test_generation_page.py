"""docs/generation.md: the tensors, parameters and metrics that it lists are those of the code."""

from __future__ import annotations

import re

from tritonclient.grpc import model_config_pb2

from documented import ROOT
from isochrone.models.configuration.generation_signature import complete_generation
from isochrone.observe.metrics.generation import generation_metrics
from isochrone.observe.snapshot import GenerationSnapshot, Histogram
from isochrone.worker.generation.counts import Durations
from isochrone.worker.generation.requests.sampling import read_parameters
from isochrone.worker.generation.settings import read_settings

PAGE = (ROOT / "docs" / "generation.md").read_text()


def listed(title: str) -> set[str]:
    """The names in the first cells of the table with this title."""
    table = PAGE.partition(f"\n| {title} |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_tensors() -> None:
    config = model_config_pb2.ModelConfig()
    complete_generation(config, "config.pbtxt", [])
    assert listed("input") == {tensor.name for tensor in config.input}
    assert listed("output") == {tensor.name for tensor in config.output}


def test_the_parameters_of_requests() -> None:
    values = {"stop": "x", "ignore_eos": True, "min_tokens": 1}
    defaults = read_parameters({})
    for name in listed("parameter"):
        assert read_parameters({name: values.get(name, 1)}) != defaults or name in ("temperature", "top_p")


def test_the_parameters_of_models() -> None:
    values = {"prefix_reuse": "false", "chunked_prefill": "false", "batching": "static"}
    defaults = read_settings({}, "config.pbtxt")
    for name in listed("key"):
        assert read_settings({name: values.get(name, "2" if name != "top_p" else "0.5")}, "config.pbtxt") != defaults, (
            name
        )


def test_the_metrics() -> None:
    empty: Histogram = Durations().snapshot()
    snapshot = GenerationSnapshot("m", "1", 0, 0, 0, 0, 0, 0, {}, 0, 0, 0, 0, empty, empty)
    made = {family.name for family in generation_metrics([snapshot])}
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert {name.removesuffix("_total") for name in re.findall(r"`(isochrone_generation_\w+)", page)} == made
    assert list(generation_metrics([])) == []
