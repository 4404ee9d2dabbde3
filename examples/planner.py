"""A model for the demo that sleeps instead of computing, as a model does that waits for an accelerator.

Three workers, a gateway and a load generator may share two cores. With a model that computes, the demo would show the
kernel's scheduler; with this one it shows the routing.
"""

from __future__ import annotations

from pathlib import Path

MODEL = "planner"
WIDTH = 64
INSTANCES = 4

_CONFIG = """\
name: "planner"
backend: "python"
max_batch_size: 1
input [ { name: "state" data_type: TYPE_FP32 dims: [ %d ] } ]
output [ { name: "plan" data_type: TYPE_FP32 dims: [ %d ] } ]
dynamic_batching { }
instance_group [ { count: %d kind: KIND_CPU } ]
parameters [ { key: "service_ms" value { string_value: "%g" } } ]
"""

_MODEL = '''\
"""Sleeps for 0.5 to 1.5 times its service time and returns its input."""

import random
import time


class Model:
    def load(self, context):
        self.seconds = float(context.parameters["service_ms"]) / 1000
        self.random = random.Random(context.instance)

    def infer(self, inputs):
        time.sleep(self.seconds * self.random.uniform(0.5, 1.5))
        return {"plan": inputs["state"]}
'''


def write_planner(repository: Path, service_ms: float) -> Path:
    """Write a repository with this model alone; return its path."""
    version = repository / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (repository / MODEL / "config.pbtxt").write_text(_CONFIG % (WIDTH, WIDTH, INSTANCES, service_ms))
    return repository
