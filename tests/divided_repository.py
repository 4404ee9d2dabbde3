"""Repositories of a divided model, as ``isochrone partition --keep-memory`` writes them, with figures of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import numpy_helper

from isochrone.models.divisions import Link
from isochrone.optimize.partitioning.choices import Option
from isochrone.optimize.partitioning.cuts import all_cuts
from isochrone.optimize.partitioning.facts import facts_of
from isochrone.optimize.partitioning.graph import graph_of
from isochrone.optimize.partitioning.planning import Plan, Planned
from isochrone.optimize.partitioning.stages import divided
from isochrone.optimize.partitioning.writing import NO_FILES, write_divisions_of, write_repositories
from two_stage_net import residual_net

NAME = "net"


def images(rows: int = 1, size: int = 16) -> dict[str, Any]:
    return {"image": np.random.default_rng(rows).standard_normal((rows, 3, size, size)).astype(np.float32)}


def versioned_net(version: int = 1, size: int = 16) -> Any:
    """The model of the tests; of another version, all weights are others."""
    model = residual_net(size=size)
    for weight in model.graph.initializer if version > 1 else ():
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32:
            weight.CopyFrom(numpy_helper.from_array(values * np.float32(1 + 0.3 * version), weight.name))
    return model


def expected(rows: int = 1, size: int = 16, version: int = 1) -> Any:
    model = versioned_net(version, size).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, images(rows, size))[0]


def write_divided(
    target: Path,
    core: str,
    seconds: dict[str, tuple[float, float]],
    *,
    link: Link = Link(0.0005, 1e9),  # noqa: B008
    size: int = 16,
    version: int = 1,
    keeps_one: bool = False,
    certificates: Mapping[str, str] = NO_FILES,
    **parameters: str,
) -> None:
    """``seconds``: of each division on the edge and in the core; the first one is the present one. ``keeps_one``: the
    model is this one alone, as without ``--keep-memory``. ``version``: of the weights; the directories are called 1.

    ``cut-6`` is the cut behind the first block; ``cut-6-zstd`` sends the same in zstd. ``parameters`` are those of the
    divided model; ``certificates`` those of its calls. ``target/edge`` reaches ``target/core`` at ``core``.
    """
    model = versioned_net(version, size)
    graph = graph_of(model)
    (cut,) = [each for each in all_cuts(graph) if each.crossing == ("b1",)]
    ends = [*graph.inputs, *graph.outputs]
    facts = facts_of(model, [*ends, "b1"], images(1, size), False)
    stages = divided(model, graph, cut, facts)
    given, answer = facts["image"].row_bytes, facts["scores"].row_bytes
    known = {
        "edge": (None, 0, 0),
        "core": (None, given, answer),
        f"cut-{cut.first.bit_count()}": (stages, stages.row_bytes, answer),
    }
    options = []
    for name, times in seconds.items():
        stage, *sizes = known[name.removesuffix("-zstd")]
        compression = "zstd" if name.endswith("-zstd") else ""
        options.append(Planned(Option(name, *times, *sizes), stage, name, compression))  # type: ignore[arg-type]
    plan = Plan(link, tuple(options), facts, graph.inputs, graph.outputs)
    if keeps_one:
        write_repositories(target, NAME, model, plan, options[0], core.split(","), 8, certificates)
    else:
        write_divisions_of(target, NAME, model, plan, options, core.split(","), 8, certificates)
    config = target / "edge" / NAME / "config.pbtxt"
    with config.open("a") as file:
        for key, value in parameters.items():
            file.write(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n')


_SLOW_MODEL = """
import time
import onnxruntime

class Model:
    def load(self, context):
        self.session = onnxruntime.InferenceSession(
            str(context.directory / "whole.onnx"), providers=["CPUExecutionProvider"]
        )
        self.seconds = float(context.parameters["seconds"])

    def infer(self, inputs):
        time.sleep(self.seconds)
        return {"scores": self.session.run(None, {"image": inputs["image"]})[0]}
"""


def slow_edge(target: Path, seconds: float) -> None:
    """Makes the whole model on the edge take so long, whatever the machine."""
    model = target / "edge" / f"{NAME}.edge"
    config = (model / "config.pbtxt").read_text()
    config = config.replace('backend: "onnxruntime"', 'backend: "python"')
    config += f'parameters {{ key: "seconds" value {{ string_value: "{seconds}" }} }}\n'
    # As many instances as callers: sleeping takes no processor.
    config += "instance_group { count: 4 }\n"
    (model / "config.pbtxt").write_text(config)
    (model / "1" / "model.onnx").rename(model / "1" / "whole.onnx")
    (model / "1" / "model.py").write_text(_SLOW_MODEL)
