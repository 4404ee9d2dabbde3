"""The share of each node in a run, by onnxruntime's profiler, and the cuts that are worth measuring."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isochrone.errors import InvalidArgument
from isochrone.optimize.partitioning.cuts import Cut
from isochrone.optimize.partitioning.facts import Arrays

_RUNS = 5
_MARK = "node@"


def node_work(model: Any, rows: Arrays) -> list[float]:
    """Microseconds of each node. Nothing is fused: they tell where in the graph the work is, not how long it takes."""
    import onnx
    import onnxruntime

    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for position, node in enumerate(copied.graph.node):
        node.name = f"{_MARK}{position}"
    with tempfile.TemporaryDirectory() as directory:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(directory) / "profile")
        try:
            session = onnxruntime.InferenceSession(
                copied.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            for _ in range(_RUNS):
                session.run(None, dict(rows))
        except Exception as error:  # its exceptions derive from Exception alone
            raise InvalidArgument(f"onnxruntime cannot run this model: {error}") from None
        events = json.loads(Path(session.end_profiling()).read_text())
    work = [0.0] * len(copied.graph.node)
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.startswith(_MARK) and name.endswith("_kernel_time"):
            work[int(name.removeprefix(_MARK).removesuffix("_kernel_time"))] += event["dur"]
    return work


def worth_measuring(
    cuts: Sequence[Cut], work: Sequence[float], row_bytes: Mapping[str, int], most: int = 12
) -> list[Cut]:
    """At most ``most`` cuts, from early to late. Pure.

    Of each equal share of the work, the one that the fewest bytes cross; then the others with the fewest bytes.
    """
    total = sum(work) or 1.0
    before = [sum(each for position, each in enumerate(work) if cut.has(position)) for cut in cuts]
    crossing = [sum(row_bytes[name] for name in cut.crossing) for cut in cuts]
    by_bytes = sorted(range(len(cuts)), key=lambda number: crossing[number])
    best: dict[int, int] = {}
    for number in by_bytes:
        best.setdefault(min(most - 1, int(most * before[number] / total)), number)
    kept = set(best.values())
    kept |= set([number for number in by_bytes if number not in kept][: most - len(kept)])
    return [cuts[number] for number in sorted(kept, key=lambda number: before[number])]
