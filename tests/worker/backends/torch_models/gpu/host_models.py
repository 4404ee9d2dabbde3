"""A torch model as a GPU runs it, on the CPU: its configuration, its load by ``load_on_device``, requests to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.files import LoadedFile
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable
from isochrone.worker.backends.torch.gpu.loading import load_on_device
from isochrone.worker.backends.torch.gpu.settings import gpu_settings

BATCHED = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "total" data_type: TYPE_FP32 dims: [ 1 ] }
"""


class Affine(torch.nn.Module):  # type: ignore[misc]
    """Counts its runs, so that a test sees whether a graph ran."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = torch.nn.Linear(3, 2)
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.rows.append(x.shape[0])
        return self.layer(x), x.sum(1, keepdim=True).float()


def context_of(config: str, name: str = "m") -> LoadContext:
    message = model_config_pb2.ModelConfig(name=name)
    text_format.Parse(config, message)
    plain = {key: value.string_value for key, value in message.parameters.items()}
    return LoadContext(name, "1", Path("/nowhere/m/1"), message, signature_of(message), 0, (), plain, gpu=0)


def loaded(
    config: str = BATCHED, module: Any = None, device: Any = None, name: str = "m", instance: int = 0
) -> GpuExecutable:
    module = module or Affine()
    context = dataclasses.replace(context_of(config, name), instance=instance)
    file = LoadedFile(module, ["x"], [], module.to)
    device = device or HostDevice(torch)
    made = load_on_device(context, torch, file, (["x"], []), device, gpu_settings(context), 0)
    assert isinstance(made, GpuExecutable)
    return made


def request(array: Any, outputs: tuple[str, ...] | None = None, targets: dict[str, Any] | None = None) -> Any:
    return SimpleNamespace(
        inputs={"x": array},
        plan=SimpleNamespace(batch_size=array.shape[0], outputs=outputs),
        output_target=lambda name, shape, dtype: (targets or {}).get(name),
    )
