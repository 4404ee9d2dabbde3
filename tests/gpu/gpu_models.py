"""Torch models on a GPU for tests: their files, configurations and loads."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.backend import load
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable

ROWS = torch.export.Dim("rows", min=1, max=64)
GROUP = "instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }\n"
TENSORS = (
    "max_batch_size: 16\n"
    'input { name: "x" data_type: TYPE_FP32 dims: [ 64 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 32 ] }\n'
)
MLP = TENSORS + GROUP


class Mlp(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Synchronising(torch.nn.Module):  # type: ignore[misc]
    """Takes a decision on the host."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            return x[:, :32] * 2
        return x[:, :32]


class Indexing(torch.nn.Module):  # type: ignore[misc]
    """Indices outside the table fail an assertion on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)


def write(directory: Path, module: torch.nn.Module, example: torch.Tensor) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), (example,), dynamic_shapes=({0: ROWS},))
        torch.export.save(program, str(directory / "model.pt2"))


def script(directory: Path, module: torch.nn.Module) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(directory / "model.pt"))


def context(directory: Path, config: str, name: str = "m") -> LoadContext:
    message = model_config_pb2.ModelConfig(name=name)
    text_format.Parse(config, message)
    parameters = {key: value.string_value for key, value in message.parameters.items()}
    return LoadContext(name, "1", directory, message, signature_of(message), 0, (), parameters, gpu=0)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def on_gpu(directory: Path, config: str = MLP, name: str = "m", **changes: Any) -> GpuExecutable:
    executable = load(dataclasses.replace(context(directory, config, name), **changes))
    assert isinstance(executable, GpuExecutable)
    return executable
