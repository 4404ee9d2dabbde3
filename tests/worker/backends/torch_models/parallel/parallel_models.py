"""Small models of ``model.py`` and ``model.safetensors``, for tests of parallel instances."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from config_text import parameter
from safetensors.torch import save_model

#: An MLP with residual connections, whose children are the stages of a pipeline.
MLP = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def build():
    return nn.Sequential(nn.Linear(8, 16), Block(16), Block(16), Block(16), nn.Linear(16, 3))


tensor_parallel_plan = {"*.up": "colwise", "*.down": "rowwise"}
"""

#: A transformer encoder with rotary positions, in a buffer that the file of weights has not.
ENCODER = """
import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS = 32, 4, 6


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)

    def forward(self, ids, scale):
        return self.words(ids) * scale.unsqueeze(-1), scale


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        size = WIDTH // HEADS
        angles = torch.arange(TOKENS)[:, None] / 100 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("cosine", torch.cos(angles).repeat(1, 2), persistent=False)
        self.register_buffer("sine", torch.sin(angles).repeat(1, 2), persistent=False)
        self.half = torch.tensor(0.5)

    def turned(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat((-second, first), -1) * self.sine

    def forward(self, given):
        x, scale = given
        rows, tokens, _ = x.shape
        y = self.norm(x)
        heads = [part(y).view(rows, tokens, -1, WIDTH // HEADS).transpose(1, 2) for part in
                 (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(self.turned(heads[0]), self.turned(heads[1]), heads[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, -1)) * self.half
        return x + self.down(functional.gelu(self.up(x))), scale


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, given):
        x, scale = given
        return {"scores": self.head(x.mean(1)), "total": scale.sum(1, keepdim=True)}


def build():
    return nn.Sequential(Embed(), Layer(), Layer(), Layer(), Pool())


tensor_parallel_plan = {
    "*.query": "colwise", "*.key": "colwise", "*.value": "colwise", "*.out": "rowwise",
    "*.up": "colwise", "*.down": "rowwise",
}
"""

MLP_CONFIG = """
max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
ENCODER_CONFIG = """
max_batch_size: 16
input { name: "ids" data_type: TYPE_INT64 dims: [ 6 ] }
input { name: "scale" data_type: TYPE_FP32 dims: [ 6 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 5 ] }
output { name: "total" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def ranks(tensor: int, pipeline: int) -> str:
    return parameter("tensor_parallel", str(tensor)) + parameter("pipeline_parallel", str(pipeline))


def write_model(directory: Path, source: str = MLP, seed: int = 5) -> Any:
    """Writes ``model.py`` and its weights; the module."""
    (directory / "model.py").write_text(source)
    spec = importlib.util.spec_from_file_location(f"written_{abs(hash(str(directory)))}", directory / "model.py")
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    torch.manual_seed(seed)
    module = written.build().eval()
    save_model(module, str(directory / "model.safetensors"))
    return module


#: An MLP that fails in its second stage: for NaN in every rank, for large numbers in the last rank alone. For very
#: large ones the last rank hangs.
TOUCHY = (
    MLP.replace("import torch\n", "import time\n\nimport torch\n", 1).replace(
        "def build():",
        """class Touchy(nn.Module):
    def forward(self, x):
        if torch.isnan(x).any():
            raise ValueError("not a number")
        rank = torch.distributed.get_rank()
        if rank == torch.distributed.get_world_size() - 1:
            if (x.abs() > 1e20).any():
                time.sleep(600)
            if (x.abs() > 1e10).any():
                raise ValueError(f"too large in rank {rank}")
        return x


def build():""",
    )
).replace("Block(16), nn.Linear(16, 3)", "Touchy(), Block(16), nn.Linear(16, 3)")
