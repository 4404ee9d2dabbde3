"""Models whose answers state the version that computed them, and versions with faults.

``solo`` stands alone; ``chain`` is an ensemble of ``stage_a`` and ``stage_b``. A version's number is a constant in its
own ``model.py``, so the answer states the file that ran, not the server's belief. They sleep instead of computing:
whole fleets share two cores here, and only queueing matters. Must never make two versions differ in anything else than
requested.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOLO, CHAIN = "solo", "chain"
STAGES = ("stage_a", "stage_b")
MODELS = (SOLO, CHAIN, *STAGES)
PIPELINES = {CHAIN: STAGES}
#: Output tensors of the chain that hold what each stage said.
STAGE_OUTPUTS = {"STAGE_A": "stage_a", "STAGE_B": "stage_b"}

_SOURCE = '''"""Doubles its input and says which version it is."""

import os
import random
import sys
import time

import numpy as np

VERSION = {version}
SERVICE_SECONDS = {service_seconds!r}
SPREAD = {spread!r}
FAILS_ON = {fails_on!r}
HELD_BY = {held_by!r}


def _named(word):
    return any(pair == ("--name", word) for pair in zip(sys.argv, sys.argv[1:])) or f"--name={{word}}" in sys.argv


class Model:
    def load(self, context):
        self.random = random.Random(context.instance)
        self.fails = bool(FAILS_ON) and _named(FAILS_ON)
        while HELD_BY and os.path.exists(HELD_BY):
            time.sleep(0.01)

    def infer(self, inputs):
        if self.fails:
            raise RuntimeError(f"version {{VERSION}} does not run on worker {{FAILS_ON}}")
        if SERVICE_SECONDS:
            time.sleep(SERVICE_SECONDS * self.random.uniform(1 - SPREAD, 1 + SPREAD))
        given = inputs["X"]
        return {{"Y": given * 2, "VERSION": np.full(given.shape, VERSION, dtype=np.int32)}}
'''

# The sample is run before a version is READY, and a failure in it fails the load.
_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 1
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}, {{ name: "VERSION" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
dynamic_batching {{ }}
model_warmup [ {{
  name: "one" batch_size: 1
  inputs {{ key: "X" value: {{ data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }} }}
}} ]
parameters {{ key: "auto_warmup" value: {{ string_value: "false" }} }}
"""

_CHAIN_CONFIG = """name: "chain"
platform: "ensemble"
max_batch_size: 1
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "STAGE_A" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "STAGE_B" data_type: TYPE_INT32 dims: [ 1 ] }
]
ensemble_scheduling {
  step {
    model_name: "stage_a" model_version: -1
    input_map { key: "X" value: "X" }
    output_map { key: "Y" value: "between" } output_map { key: "VERSION" value: "STAGE_A" }
  }
  step {
    model_name: "stage_b" model_version: -1
    input_map { key: "X" value: "between" }
    output_map { key: "Y" value: "Y" } output_map { key: "VERSION" value: "STAGE_B" }
  }
}
"""


@dataclass(frozen=True)
class Service:
    """How a model serves: so many at once on a worker, each for about so long. Spread 0.5: half to one and a half."""

    milliseconds: float = 0.0
    spread: float = 0.0
    instances: int = 2


def write_repository(directory: Path, versions: int = 3, service: Service | None = None) -> Path:
    """``solo``, ``stage_a``, ``stage_b`` and ``chain``, each with versions 1 to ``versions``; returns the directory."""
    service = service or Service()
    for model in (SOLO, *STAGES):
        write_model(directory, model, service, versions)
    (directory / CHAIN).mkdir(parents=True, exist_ok=True)
    (directory / CHAIN / "config.pbtxt").write_text(_CHAIN_CONFIG)
    for version in range(1, versions + 1):
        _version_directory(directory, CHAIN, version)
    return directory


def write_model(directory: Path, model: str, service: Service, versions: int = 1) -> None:
    """One more model like ``solo``."""
    (directory / model).mkdir(parents=True, exist_ok=True)
    (directory / model / "config.pbtxt").write_text(_CONFIG.format(name=model, instances=service.instances))
    for version in range(1, versions + 1):
        write_version(directory, model, version, service)


def write_version(
    directory: Path,
    model: str,
    version: int,
    service: Service | None = None,
    *,
    fails_on: str = "",
    held_by: Path | str = "",
) -> None:
    """A working version; one that fails its warm-up on the worker named ``fails_on``; one whose load waits for as long
    as the file ``held_by`` is there."""
    service = service or Service()
    source = _SOURCE.format(
        version=version,
        service_seconds=service.milliseconds / 1000,
        spread=service.spread,
        fails_on=fails_on,
        held_by=str(held_by),
    )
    _write(_version_directory(directory, model, version) / "model.py", source)


def write_slower_version(directory: Path, model: str, version: int, service: Service, factor: float) -> None:
    """The same work, taking longer by a factor, with the same relative noise."""
    slower = Service(service.milliseconds * factor, service.spread, service.instances)
    write_version(directory, model, version, slower)


def write_corrupt_version(directory: Path, model: str, version: int) -> None:
    """A file that broke off in the middle, as a copy that was cut short leaves it."""
    source = _SOURCE.format(version=version, service_seconds=0.0, spread=0.0, fails_on="", held_by="")
    _write(_version_directory(directory, model, version) / "model.py", source[: source.index("def infer") + 8])


def write_failing_version(directory: Path, model: str, version: int) -> None:
    """It loads, and fails every request."""
    source = _SOURCE.format(version=version, service_seconds=0.0, spread=0.0, fails_on="", held_by="")
    _write(
        _version_directory(directory, model, version) / "model.py",
        source.replace("        given = ", "        raise ValueError('the weights are missing')\n        given = "),
    )


def write_large_version(directory: Path, model: str, version: int, size: int, service: Service | None = None) -> None:
    """A version with a file of so many bytes beside it; the file takes no room on the disk."""
    write_version(directory, model, version, service)
    with (_version_directory(directory, model, version) / "weights.bin").open("wb") as file:
        file.truncate(size)


def copy_with_another_config(directory: Path, other: Path, model: str, instances: int = 3) -> Path:
    """The same repository as another machine might hold it: one model's configuration differs. Returns ``other``."""
    shutil.copytree(directory, other)
    config = other / model / "config.pbtxt"
    (_, before, after) = config.read_text().partition("instance_group [ { count: ")
    count = after.split(" ", 1)[0]
    if not before or count == str(instances):
        raise ValueError(f"{config}: expected an instance_group with another count than {instances}")
    changed = config.read_text().replace(f"{before}{count} ", f"{before}{instances} ")
    _write(config, changed)
    return other


def _version_directory(directory: Path, model: str, version: int) -> Path:
    path = directory / model / str(version)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a server may be reading."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
