"""The models that ``bench.gpu.memory`` needs beside the encoder: one too heavy, one that faults, one that aborts."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.models.repository import FILE

HEAVY, FAULTY, ABORTING = "heavy", "faulty", "aborting"
_IDS = 'input { name: "ids" data_type: TYPE_INT32 dims: [ 4 ] }\n'
_SUMS = 'output { name: "sums" data_type: TYPE_FP32 dims: [ 4 ] }\n'
_ISOLATED = 'parameters { key: "isolation" value: { string_value: "process" } }\n'
_ABORTING = """import os

import numpy as np


class Model:
    def infer(self, inputs):
        if inputs["ids"].max() > 1000:
            os.abort()
        return {"sums": inputs["ids"].astype(np.float32)}
"""


def write_heavy(repository: Path, device: str, weight_bytes: int) -> None:
    """A program with one weight of that size, none of which its output needs; written as an exported program is."""
    import torch
    from torch import Tensor, nn

    class Heavy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(weight_bytes // 2, dtype=torch.float16), requires_grad=False)

        def forward(self, ids: Tensor) -> Tensor:
            return ids.float() + self.weight[0].float()

    _export(Heavy(), repository / HEAVY / "1" / FILE, device)
    if device != "cpu":
        torch.cuda.empty_cache()
    _configure(repository, HEAVY, "pytorch", _group(device))


def write_faulty(repository: Path, device: str) -> None:
    """An embedding: ids beyond its 16 rows are an assertion on a GPU, and a plain error on a CPU."""
    import torch
    from torch import Tensor, nn

    class Faulty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(16, 8)

        def forward(self, ids: Tensor) -> Tensor:
            sums: Tensor = self.table(ids).sum(-1)
            return sums

    torch.manual_seed(1)
    _export(Faulty(), repository / FAULTY / "1" / FILE, device)
    _configure(repository, FAULTY, "pytorch", _group(device) + _ISOLATED)


def write_aborting(repository: Path) -> None:
    """A Python model whose process aborts: the same test where there is no GPU."""
    file = repository / ABORTING / "1" / "model.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_ABORTING)
    _configure(repository, ABORTING, "python", _ISOLATED)


def _group(device: str) -> str:
    kind = "KIND_CPU" if device == "cpu" else "KIND_GPU"
    return f"instance_group {{ kind: {kind} count: 1 }}\n"


def _export(module: object, path: Path, device: str) -> None:
    import torch

    rows = torch.export.Dim("batch", min=1, max=128)
    example = (torch.zeros((4, 4), dtype=torch.int32, device=device),)
    program = torch.export.export(module.to(device).eval(), example, dynamic_shapes={"ids": {0: rows}}, strict=False)  # type: ignore[attr-defined]
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, str(path))


def _configure(repository: Path, name: str, backend: str, rest: str) -> None:
    head = f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: 8\n'
    (repository / name / "config.pbtxt").write_text(head + _IDS + _SUMS + rest)
