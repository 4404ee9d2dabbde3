"""Small modules and batches that the tests of training share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CLASSES = 3


def separable_net() -> nn.Sequential:
    """Every kind of layer that has a rule of its own: folded norms, depthwise, ReLU6, pooling, flatten."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.ReLU6(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def pictures(count: int = 64, seed: int = 0) -> tuple[Any, Any]:
    """Noise whose mean depends on the class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    pixels = torch.randn(count, 1, 6, 6, generator=random) + (labels - 1)[:, None, None, None]
    return pixels, labels


def batches(count: int = 64, rows: int = 16) -> list[tuple[Any, Any]]:
    pixels, labels = pictures(count)
    return list(zip(pixels.split(rows), labels.split(rows), strict=True))
