"""``score``: a model whose versions differ in what canaries and comparisons look for, and in nothing else.

It sleeps for a time drawn from a lognormal distribution: the noise of a service whose work depends on its input. A
version may take longer by a factor, fail a share of its requests, or answer slightly wrong. Its outputs do not contain
its version, because outputs are compared; the answer's ``model_version`` does. Must never fail without saying so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCORE = "score"
#: Error of a request that a version fails on purpose.
ON_PURPOSE = "this version fails a share of its requests"

_SOURCE = '''"""Doubles its input; a score beside it."""

import random
import time

MEDIAN_SECONDS = {median_seconds!r}
SIGMA = {sigma!r}
FAILS = {fails!r}
DRIFT = {drift!r}


class Model:
    def load(self, context):
        self.random = random.Random()

    def infer(self, inputs):
        time.sleep(MEDIAN_SECONDS * self.random.lognormvariate(0, SIGMA))
        if FAILS and self.random.random() < FAILS:
            raise RuntimeError({on_purpose!r})
        given = inputs["X"]
        return {{"Y": given * 2, "SCORE": (given + 1) * (1 + DRIFT)}}
'''

# Warmed up by nothing of its own: one that fails a share of its requests would sometimes fail to load.
_CONFIG = """name: "score"
backend: "python"
max_batch_size: 1
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}, {{ name: "SCORE" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
dynamic_batching {{ }}
parameters {{ key: "auto_warmup" value: {{ string_value: "false" }} }}
"""


@dataclass(frozen=True)
class Scoring:
    """The behaviour of a version of ``score``. The 95th percentile of its time is exp(1.645 sigma) times the median."""

    median_ms: float = 50.0
    sigma: float = 0.5
    #: Share of requests that end in an error.
    fails: float = 0.0
    #: Relative error of its score.
    drift: float = 0.0


def write_score(repository: Path, instances: int = 2) -> None:
    """The model, without any version yet."""
    (repository / SCORE).mkdir(parents=True, exist_ok=True)
    (repository / SCORE / "config.pbtxt").write_text(_CONFIG.format(instances=instances))


def write_score_version(repository: Path, version: int, scoring: Scoring) -> None:
    source = _SOURCE.format(
        median_seconds=scoring.median_ms / 1000,
        sigma=scoring.sigma,
        fails=scoring.fails,
        drift=scoring.drift,
        on_purpose=ON_PURPOSE,
    )
    directory = repository / SCORE / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / "model.py.partial"
    partial.write_text(source)
    partial.replace(directory / "model.py")
