"""The encoder of ``bench.parallel`` as a model with ranks. Each version has a copy, with ``sizes.py`` beside it."""

import torch
from sizes import HEADS, LAYERS, TOKENS, VOCABULARY, WIDTH
from torch import Tensor, nn
from torch.nn import functional


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(TOKENS, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.positions


class Layer(nn.Module):
    """Attention and a feed-forward network. Heads are counted from the width that a rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        y = self.attention_norm(x)
        query, key, value = (
            part(y).view(rows, tokens, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, -1))
        return x + self.down(functional.gelu(self.up(self.forward_norm(x))))


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def build() -> nn.Module:
    return nn.Sequential(Embed(), *(Layer() for _ in range(LAYERS)), Pool())


tensor_parallel_plan = {
    **dict.fromkeys(("*.query", "*.key", "*.value", "*.up"), "colwise"),
    **dict.fromkeys(("*.out", "*.down"), "rowwise"),
}
