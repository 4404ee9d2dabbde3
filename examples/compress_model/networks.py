"""The networks of the example: perceptrons of a few layers."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(*widths: int, dropout: float = 0.0) -> nn.Sequential:
    """Layers from each width to the next with a ReLU between them, and dropout after it where asked for."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()] + [nn.Dropout(dropout)] * (dropout > 0)
    return nn.Sequential(*layers[: -2 if dropout else -1])
