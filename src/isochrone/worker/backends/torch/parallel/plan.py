"""The plan of a ``model.py``: which layers the ranks of a stage share, and how.

``"colwise"`` and ``"rowwise"`` are for ``nn.Linear``: each rank has some of the outputs of a colwise layer, and the
inputs of a rowwise one that belong to them; the ranks add up the results of the rowwise layer. Weights are plain
tensors: torch's DTensors take longer in each call. Other styles are torch's ``ParallelStyle`` objects, which use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from isochrone.errors import ConfigError
from isochrone.worker.backends.torch.parallel.module_source import PLAN

COLWISE, ROWWISE = "colwise", "rowwise"


class Shares:
    """How this rank shares the layers of its stage; ``group``: the process group of its stage."""

    def __init__(self, count: int, number: int, group: Any, device: str) -> None:
        self.count = count
        self.number = number
        self._group = group
        self._device = device
        self._mesh: Any = None

    def add_up(self, _module: Any, _arguments: Any, output: Any) -> Any:
        """A forward hook: the sum of the outputs of all ranks of the stage."""
        output = output.contiguous()
        torch.distributed.all_reduce(output, group=self._group)
        return output

    @property
    def mesh(self) -> Any:
        if self._mesh is None:
            from torch.distributed.device_mesh import DeviceMesh

            self._mesh = DeviceMesh.from_group(self._group, self._device)
        return self._mesh


def styles_by_path(path: Path, module: Any, plan: Mapping[str, Any], tensor_parallel: int) -> dict[str, Any]:
    """Module path → style, checked. A pattern stands for one or more modules; ``*`` for one name of a path."""
    styles: dict[str, Any] = {}
    parts = dict(module.named_modules())
    for pattern, style in plan.items():
        matching = [name for name in parts if _matches(name, pattern)]
        if not matching:
            raise ConfigError(str(path), f'{PLAN}["{pattern}"]', "the path of a module", "no such module")
        for name in matching:
            _check(path, name, parts[name], pattern, style, tensor_parallel)
            styles[name] = style
    if tensor_parallel > 1 and not styles:
        expected = (
            "paths of modules, such as {'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}, for tensor_parallel"
        )
        raise ConfigError(str(path), PLAN, expected, "none")
    return styles


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _check(path: Path, name: str, part: Any, pattern: str, style: Any, ranks: int) -> None:
    key = f'{PLAN}["{pattern}"]'
    if not isinstance(style, str):
        if not hasattr(style, "_apply"):
            expected = "'colwise', 'rowwise' or a ParallelStyle of torch.distributed.tensor.parallel"
            raise ConfigError(str(path), key, expected, repr(style))
        return
    if style not in (COLWISE, ROWWISE):
        raise ConfigError(str(path), key, "'colwise', 'rowwise' or a ParallelStyle", repr(style))
    if not isinstance(part, torch.nn.Linear):
        given = f"'{name}', a {type(part).__name__}"
        raise ConfigError(str(path), key, f"an nn.Linear for '{style}'; a ParallelStyle for others", given)
    what, size = ("out_features", part.out_features) if style == COLWISE else ("in_features", part.in_features)
    if size % ranks:
        raise ConfigError(str(path), key, f"{what} that tensor_parallel = {ranks} divides", f"'{name}': {size}")


def apply(styles: Mapping[str, Any], parts: Mapping[str, Any], shares: Shares) -> dict[str, int]:
    """Divides the modules ``parts`` (by path) of this rank's stage; weights are still on the meta device.

    Returns the dimension by which each parameter is divided; DTensors say it themselves.
    """
    divided: dict[str, int] = {}
    for name, style in styles.items():
        part = parts.get(name)
        if part is None:
            continue
        prefix = f"{name}." if name else ""
        if style == COLWISE:
            divided |= {f"{prefix}weight": 0, f"{prefix}bias": 0}
        elif style == ROWWISE:
            divided[f"{prefix}weight"] = 1
            if shares.number:  # the bias is added once
                part.bias = None
            part.register_forward_hook(shares.add_up)
        else:
            from torch.distributed.tensor.parallel import parallelize_module

            parallelize_module(part, shares.mesh, style)
    return divided
