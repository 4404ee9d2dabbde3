"""Three small networks, trained for some seconds on made data, as ONNX files with data and labels beside them.

The classes of the made data are patterns under noise and shifts, so that accuracy is neither trivial nor perfect.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

CLASSES = 10
_TRAINING, _CALIBRATION = 3072, 2048


class Made(NamedTuple):
    name: str
    model: Path
    data: Path
    accuracy: float
    """Of the float model on the data."""


class Encoder(nn.Module):
    """A transformer encoder over tokens; the mean of its states is classified."""

    def __init__(self, words: int = 512, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(1, 32, width) * 0.02)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(layers)])
        self.classes = nn.Linear(width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.words(tokens) + self.places
        for block in self.blocks:
            states = block(states)
        scores: torch.Tensor = self.classes(states.mean(dim=1))
        return scores


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined = nn.Linear(width, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        normal = self.before(states)
        query, key, value = (self._split(layer(normal)) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-1, -2) / (self.width / self.heads) ** 0.5, dim=-1)
        seen = (weights @ value).transpose(1, 2).reshape(-1, 32, self.width)
        states = states + self.joined(seen)
        out: torch.Tensor = states + self.narrow(nn.functional.gelu(self.wide(self.between(states))))
        return out

    def _split(self, states: torch.Tensor) -> torch.Tensor:
        return states.reshape(-1, 32, self.heads, self.width // self.heads).transpose(1, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 48), (48, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def vectors(count: int, random: Any) -> tuple[Any, Any]:
    patterns = np.random.default_rng(1).normal(size=(CLASSES, 2, 256))
    labels = random.integers(0, CLASSES, count)
    mixed = patterns[labels, random.integers(0, 2, count)] * random.uniform(0.5, 1.5, (count, 1))
    return (mixed + random.normal(scale=3.0, size=mixed.shape)).astype(np.float32), labels


def images(count: int, random: Any) -> tuple[Any, Any]:
    patterns = np.random.default_rng(2).normal(size=(CLASSES, 3, 32, 32))
    labels = random.integers(0, CLASSES, count)
    shifts = random.integers(0, 3, (count, 2))
    moved = [np.roll(patterns[label], shift, axis=(1, 2)) for label, shift in zip(labels, shifts, strict=True)]
    return (np.stack(moved) + random.normal(scale=1.5, size=(count, 3, 32, 32))).astype(np.float32), labels


def sentences(count: int, random: Any) -> tuple[Any, Any]:
    labels = random.integers(0, CLASSES, count)
    tokens = random.integers(0, 512, (count, 32))
    hints = random.random((count, 32)) < 0.25
    own = labels[:, None] * 20 + random.integers(0, 20, (count, 32))
    return np.where(hints, own, tokens).astype(np.int64), labels


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, Any], tuple[Any, Any]], int]] = {
    "mlp": (mlp, vectors, 6),
    "convolutions": (convolutions, images, 2),
    "encoder": (Encoder, sentences, 4),
}
NAMES = tuple(_MODELS)


def make(name: str, directory: Path, seed: int = 0) -> Made:
    build, draw, epochs = _MODELS[name]
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = build()
    inputs, labels = draw(_TRAINING, random)
    _train(network, torch.from_numpy(inputs), torch.from_numpy(labels), epochs)
    network.eval()
    inputs, labels = draw(_CALIBRATION, random)
    with torch.no_grad():
        given = torch.cat([network(part).argmax(dim=-1) for part in torch.from_numpy(inputs).split(256)]).numpy()
    model, data = directory / f"{name}.onnx", directory / f"{name}.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter that needs no further package
        torch.onnx.export(
            network,
            (torch.from_numpy(inputs[:1]),),
            str(model),
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes={"x": {0: "batch"}, "scores": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )
    np.savez(data, x=inputs, y=labels)
    return Made(name, model, data, float(np.mean(given == labels)))


def _train(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    rule = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(128):
            rule.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs[rows]), labels[rows])
            loss.backward()
            rule.step()
