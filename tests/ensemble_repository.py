"""Repositories of ensembles and the models of their steps, written for our worker or for Triton's python backend.

One description, two servers: what a model computes is a function ``answer`` of a dictionary of arrays, and only the
class around it differs. ``tests/worker`` loads them into our catalog, ``tests/peers`` compares with real Triton.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_OURS = "{body}\n\nclass Model:\n    def infer(self, inputs):\n        return answer(inputs)\n"
_TRITON = """import triton_python_backend_utils as pb

{body}

def response(outputs):
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in outputs.items()])


def given(request):
    return {{tensor.name(): tensor.as_numpy() for tensor in request.inputs()}}


class TritonPythonModel:
    def execute(self, requests):
        return {execute}
"""
_TRITON_ONE = "[response(answer(given(request))) for request in requests]"
_TRITON_MANY = """[self.stream(request) for request in requests] and None

    def stream(self, request):
        sender = request.get_response_sender()
        for outputs in answer(given(request)):
            sender.send(response(outputs))
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

ECHO = """
import numpy as np


def answer(given):
    return {name.replace("IN", "OUT"): array for name, array in given.items()}
"""


def tensor(name: str, dims: Sequence[int] = (4,), datatype: str = "FP32", more: str = "") -> str:
    """One ``input`` or ``output`` entry, without the word in front."""
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} {more} }}'


def config(name: str, inputs: Iterable[str], outputs: Iterable[str], batch: int = 0, more: str = "") -> str:
    lines = [f'name: "{name}"', f"max_batch_size: {batch}"]
    lines += [f"input {each}" for each in inputs]
    lines += [f"output {each}" for each in outputs]
    return "\n".join([*lines, textwrap.dedent(more), ""])


@dataclass(frozen=True)
class Model:
    """A python model; without ``body`` it hands inputs on as outputs: IN as OUT, IN0 as OUT0."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: int = 0
    body: str = ECHO
    decoupled: bool = False
    versions: tuple[int, ...] = (1,)
    more: str = ""

    def write(self, directory: Path, server: str) -> None:
        more = self.more + ("\nmodel_transaction_policy { decoupled: true }" if self.decoupled else "")
        text = config(directory.name, self.inputs, self.outputs, self.batch, f'backend: "python"\n{more}')
        body = textwrap.dedent(self.body).strip()
        execute = _TRITON_MANY if self.decoupled else _TRITON_ONE
        source = _OURS.format(body=body) if server == "worker" else _TRITON.format(body=body, execute=execute)
        for version in self.versions:
            (directory / str(version)).mkdir(parents=True, exist_ok=True)
            (directory / str(version) / "model.py").write_text(source)
        (directory / "config.pbtxt").write_text(text)


@dataclass(frozen=True)
class Step:
    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    version: int | None = -1

    def __str__(self) -> str:
        maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in self.inputs.items()]
        maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in self.outputs.items()]
        version = "" if self.version is None else f"model_version: {self.version}"
        return f'step {{ model_name: "{self.model}" {version} {" ".join(maps)} }}'


@dataclass(frozen=True)
class Ensemble:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    batch: int = 0
    more: str = ""

    def write(self, directory: Path, server: str) -> None:
        steps = "\n".join(map(str, self.steps))
        more = f'platform: "ensemble"\n{self.more}\nensemble_scheduling {{ {steps} }}'
        (directory / "1").mkdir(parents=True, exist_ok=True)
        (directory / "config.pbtxt").write_text(config(directory.name, self.inputs, self.outputs, self.batch, more))


def write_repository(directory: Path, models: Mapping[str, Model | Ensemble], server: str) -> Path:
    """Writes every model; ``server``: "worker" or "triton"."""
    for name, model in models.items():
        model.write(directory / name, server)
    return directory
