"""Reads a rank's part of ``model.safetensors`` into a module that was built without weights.

Only the rank's own slices are read, so that a model larger than the memory of one process loads. Parameters and
persistent buffers have to be in the file, as in ``load_state_dict``; other buffers are what ``build`` made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from isochrone.errors import ConfigError
from isochrone.models.runtimes import optional_runtime
from isochrone.worker.backends import parameters

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

FILE = "model.safetensors"


class Weights:
    """The file, and which of its tensors is which parameter or buffer of a whole module."""

    def __init__(self, context: LoadContext, module: Any) -> None:
        """Raises unless the file has what the module needs. ``module``: whole, before it is divided."""
        self._path = context.directory / FILE
        self._open = optional_runtime("safetensors", "torch", parameters.where(context)).safe_open
        if not self._path.is_file():
            raise ConfigError(str(self._path), "weights", "a file of safetensors", "no such file")
        needed = module.state_dict(keep_vars=True)
        try:
            with self._opened() as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise ConfigError(str(self._path), "weights", "a file of safetensors", str(error)) from error
        #: Name in the module → name in the file. Tied weights are in the file under one of their names.
        self._names = _matched(self._path, needed, shapes)
        for name, tensor in needed.items():
            if shapes[self._names[name]] != tuple(tensor.shape):
                given = f"{list(shapes[self._names[name]])}"
                raise ConfigError(str(self._path), f"tensor '{name}'", f"shape {list(tensor.shape)}", given)
        if unknown := sorted(set(shapes) - set(needed)):
            expected = "the tensors of build()'s module and no others"
            raise ConfigError(str(self._path), f"tensor '{unknown[0]}'", expected, "one that the module has not")

    def _opened(self) -> AbstractContextManager[Any]:
        opened: AbstractContextManager[Any] = self._open(str(self._path), framework="pt", device="cpu")
        return opened

    def read_into(
        self, modules: Mapping[str, Any], divided: Mapping[str, int], count: int, number: int, device: str
    ) -> None:
        """Reads the weights of ``modules``, by their paths in the whole module; children of them are not included.

        ``divided``: the dimension by which a parameter is divided into ``count`` parts, of which this is ``number``.
        """
        tied: dict[int, Any] = {}
        with self._opened() as file:
            for path, module in modules.items():
                prefix = f"{path}." if path else ""
                for leaf, parameter in list(module._parameters.items()):
                    if parameter is None:
                        continue
                    name = prefix + leaf
                    if name in divided or hasattr(parameter, "placements"):
                        module._parameters[leaf] = self._part(file, name, parameter, divided, count, number, device)
                        continue
                    if id(parameter) not in tied:
                        read = file.get_tensor(self._names[name]).to(device=device, dtype=parameter.dtype)
                        # With the parameter itself, so that its id stays its own.
                        tied[id(parameter)] = (parameter, torch.nn.Parameter(read, requires_grad=False))
                    module._parameters[leaf] = tied[id(parameter)][1]
                for leaf, buffer in list(module._buffers.items()):
                    if buffer is None:
                        continue
                    name = prefix + leaf
                    if name in self._names and leaf not in module._non_persistent_buffers_set:
                        buffer = file.get_tensor(self._names[name]).to(buffer.dtype)
                    elif buffer.is_meta:
                        expected = "a buffer that is computed without weights, or a persistent one"
                        raise ConfigError(str(self._path), f"buffer '{name}'", expected, "neither")
                    module._buffers[leaf] = buffer.to(device)

    def _part(
        self, file: Any, name: str, parameter: Any, divided: Mapping[str, int], count: int, number: int, device: str
    ) -> Any:
        stored = file.get_slice(self._names[name])
        if name not in divided:
            return torch.nn.Parameter(_distributed(self._path, name, stored, parameter, device), requires_grad=False)
        dimension = divided[name]
        size = parameter.shape[dimension] // count
        slices = [slice(None)] * parameter.dim()
        slices[dimension] = slice(number * size, (number + 1) * size)
        read = stored[tuple(slices)].to(device=device, dtype=parameter.dtype)
        return torch.nn.Parameter(read, requires_grad=False)


def _distributed(path: Path, name: str, stored: Any, parameter: Any, device: str) -> Any:
    """This rank's part of a DTensor, as a ParallelStyle divided it."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    ranks = parameter.device_mesh.size()
    for placement in parameter.placements:
        if placement.is_shard() and parameter.shape[placement.dim] % ranks:
            expected = f"a dimension {placement.dim} that tensor_parallel = {ranks} divides"
            raise ConfigError(str(path), f"tensor '{name}'", expected, str(list(parameter.shape)))
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    slices = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    local = stored[slices].to(device=device, dtype=parameter.dtype)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _matched(path: Path, needed: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, str]:
    same: defaultdict[int, list[str]] = defaultdict(list)
    for name, tensor in needed.items():
        same[id(tensor)].append(name)
    names = {}
    for name, tensor in needed.items():
        found = name if name in stored else next((each for each in same[id(tensor)] if each in stored), None)
        if found is None:
            expected = "in this file (a buffer that build() computes: register it with persistent=False)"
            raise ConfigError(str(path), f"tensor '{name}'", expected, "no such tensor")
        names[name] = found
    return names
