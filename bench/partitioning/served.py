"""Every option of a plan as models of both workers at once, so that requests can take turns among them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import isochrone
from bench.partitioning.tiers import Tier
from isochrone.optimize.partitioning.planning import Plan, Planned
from isochrone.optimize.partitioning.writing import write_repositories

#: Between the outputs of a division and those of the whole model. Processors of two kinds round differently.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
_REQUEST_MS = 60_000.0


class ServedOption:
    """One option: a request through the edge worker takes its way."""

    def __init__(self, planned: Planned, model: str, client: isochrone.Client, inputs: Mapping[str, Any]) -> None:
        self.planned = planned
        self.model = model
        self._client = client
        self._inputs = inputs

    @property
    def name(self) -> str:
        return self.planned.option.name

    def outputs(self) -> Mapping[str, Any]:
        return self._client.infer(self.model, self._inputs, deadline_ms=_REQUEST_MS)

    def seconds(self) -> float:
        """Of one request, as its caller sees it."""
        began = time.perf_counter()
        self.outputs()
        return time.perf_counter() - began


@contextmanager
def served_options(
    directory: Path, name: str, model: Any, plan: Plan, edge: Tier, core: Tier, inputs: Mapping[str, Any]
) -> Iterator[list[ServedOption]]:
    """Loaded while the block runs."""
    loaded: list[tuple[Tier, str]] = []
    try:
        with isochrone.Client(edge.near, retries=0) as client:
            found = []
            for number, planned in enumerate(plan.options):
                own = f"{name}-{number}"
                written = directory / own
                write_repositories(written, own, model, plan, planned, [core.far], max_batch_size=8)
                for tier in (core, edge):
                    # An ensemble after its steps.
                    for each in sorted((path.name for path in (written / tier.name).iterdir()), reverse=True):
                        shutil.copytree(written / tier.name / each, tier.repository / each)
                        tier.load(each)
                        loaded.append((tier, each))
                found.append(ServedOption(planned, own, client, inputs))
            yield found
    finally:
        for tier, each in reversed(loaded):
            tier.unload(each)
            shutil.rmtree(tier.repository / each)


def check_outputs(options: Sequence[ServedOption], model: Any, inputs: Mapping[str, Any]) -> float:
    """The largest relative difference from the whole model. Raises ``AssertionError`` beyond the tolerance."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    largest = 0.0
    for option in options:
        for output, found in option.outputs().items():
            np.testing.assert_allclose(found, wanted[output], rtol=RELATIVE, atol=ABSOLUTE, err_msg=option.name)
            size = float(np.linalg.norm(wanted[output])) or 1.0
            largest = max(largest, float(np.linalg.norm(found - wanted[output])) / size)
    return largest
