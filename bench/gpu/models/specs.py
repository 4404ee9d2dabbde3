"""The models as their callers see them: tensors, sizes, contents of requests, config.pbtxt. No torch here.

Contents come from a seed, so that every process makes the same ones: a generator checks its answers against a reference
that another process computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RESNET, RESNET_UINT8, ENCODER, TWO_TOWER = "resnet50", "resnet50_uint8", "encoder", "two_tower"
MODELS = (RESNET, RESNET_UINT8, ENCODER, TWO_TOWER)
#: The encoder compiled by AOTInductor.
ENCODER_AOTI = "encoder_aoti"
#: Graphs with overlapped copies; graphs with copies in line; overlapped copies without graphs; neither.
OVERLAP, NO_OVERLAP, NO_GRAPHS, NEITHER = "overlap", "no_overlap", "no_graphs", "neither"
VARIANTS = (OVERLAP, NO_OVERLAP, NO_GRAPHS, NEITHER)
_WITH_GRAPHS, _WITH_OVERLAP = (OVERLAP, NO_OVERLAP), (OVERLAP, NO_GRAPHS)
SAMPLES = 32

_NUMPY = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32, "INT32": np.int32}


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    name: str
    side: int
    blocks: tuple[int, ...]
    width: int
    classes: int
    layers: int
    hidden: int
    heads: int
    tokens: int
    vocabulary: int
    users: int
    items: int
    embedding: int
    max_batch: int
    graph_batch_sizes: tuple[int, ...]
    history: int = 32
    dense: int = 16
    candidates: int = 100


FULL = Sizes(
    *("full", 224, (3, 4, 6, 3), 64, 1000),
    *(12, 768, 12, 128, 30_522),
    *(1_000_000, 1_000_000, 64),
    *(64, (1, 2, 4, 8, 16, 32, 64)),
)
#: To check that everything works, on a CPU.
TINY = Sizes(
    *("tiny", 32, (1, 1, 1, 1), 8, 10),
    *(2, 32, 2, 16, 100),
    *(1_000, 1_000, 16),
    *(8, (1, 2, 4, 8)),
)


@dataclass(frozen=True)
class TensorSpec:
    name: str
    datatype: str
    #: Without the batch.
    dims: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_NUMPY[self.datatype])

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.dims)) * self.dtype.itemsize


@dataclass(frozen=True)
class ModelSpec:
    """One model. ``ranges``: the ids that an input may hold, from 0 on."""

    name: str
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    sizes: Sizes
    ranges: Mapping[str, int] = field(default_factory=dict)

    def samples(self, count: int = SAMPLES, seed: int = 11) -> dict[str, np.ndarray]:
        """``count`` rows of every input, each unlike the others."""
        generator = np.random.default_rng(seed)
        return {spec.name: self._rows(spec, count, generator) for spec in self.inputs}

    def _rows(self, spec: TensorSpec, count: int, generator: np.random.Generator) -> np.ndarray:
        shape = (count, *spec.dims)
        if spec.name in self.ranges:
            return generator.integers(0, self.ranges[spec.name], shape).astype(spec.dtype)
        if spec.name == "image":
            return _images(spec, count, generator)
        return generator.standard_normal(shape).astype(spec.dtype)


def _images(spec: TensorSpec, count: int, generator: np.random.Generator) -> np.ndarray:
    """Waves of a colour, a direction and a frequency each: of plain noise a network thinks much the same."""
    byte = spec.datatype == "UINT8"
    side = spec.dims[0] if byte else spec.dims[1]
    down, across = np.mgrid[0:side, 0:side] / side
    rows = []
    for _ in range(count):
        colour = generator.uniform(-1, 1, 3)
        wave = np.sin(2 * np.pi * (generator.uniform(-8, 8) * down + generator.uniform(-8, 8) * across))
        image = wave[:, :, None] * colour + generator.normal(0, 0.3, (side, side, 3)) + generator.uniform(-0.5, 0.5, 3)
        rows.append(image)
    images = np.stack(rows)
    if byte:
        return np.clip(128 + 60 * images, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(spec.dtype)


def spec_of(name: str, sizes: Sizes) -> ModelSpec:
    """The spec of a model, or of a variant of it."""
    base = name.partition("-")[0]
    logits = TensorSpec("logits", "FP32", (sizes.classes,))
    if base == RESNET:
        return ModelSpec(name, (TensorSpec("image", "FP16", (3, sizes.side, sizes.side)),), logits, sizes)
    if base == RESNET_UINT8:
        return ModelSpec(name, (TensorSpec("image", "UINT8", (sizes.side, sizes.side, 3)),), logits, sizes)
    if base in (ENCODER, ENCODER_AOTI):
        ids = TensorSpec("ids", "INT32", (sizes.tokens,))
        output = TensorSpec("pooled", "FP32", (sizes.hidden,))
        return ModelSpec(name, (ids,), output, sizes, {"ids": sizes.vocabulary})
    if base == TWO_TOWER:
        inputs = (
            TensorSpec("user", "INT32", (1,)),
            TensorSpec("history", "INT32", (sizes.history,)),
            TensorSpec("dense", "FP32", (sizes.dense,)),
            TensorSpec("candidates", "INT32", (sizes.candidates,)),
        )
        ranges = {"user": sizes.users, "history": sizes.items, "candidates": sizes.items}
        return ModelSpec(name, inputs, TensorSpec("scores", "FP32", (sizes.candidates,)), sizes, ranges)
    raise ValueError(f"model: expected one of {', '.join((*MODELS, ENCODER_AOTI))}, given {name}")


def variant_name(model: str, variant: str) -> str:
    """A variant is a model of its own in the repository: the same file, another config.pbtxt."""
    return model if variant == OVERLAP else f"{model}-{variant}"


def base_and_variant(name: str) -> tuple[str, str]:
    """The model and the variant that ``variant_name`` made a name of. Raises ValueError."""
    model, _, variant = name.partition("-")
    if model not in (*MODELS, ENCODER_AOTI) or variant not in ("", *VARIANTS):
        bases, variants = ", ".join((*MODELS, ENCODER_AOTI)), ", ".join(f"-{each}" for each in VARIANTS)
        raise ValueError(f"model: expected one of {bases}, alone or with one of {variants}, given {name}")
    return model, variant or OVERLAP


def config_text(
    spec: ModelSpec,
    device: str,
    variant: str = OVERLAP,
    parameters: Mapping[str, str] | None = None,
) -> str:
    """config.pbtxt."""
    lines = [f'name: "{spec.name}"', 'backend: "pytorch"', f"max_batch_size: {spec.sizes.max_batch}"]
    for kind, tensors in (("input", spec.inputs), ("output", (spec.output,))):
        for tensor in tensors:
            dims = ", ".join(map(str, tensor.dims))
            lines.append(f'{kind} {{ name: "{tensor.name}" data_type: TYPE_{tensor.datatype} dims: [ {dims} ] }}')
    lines.append("dynamic_batching { }")
    keys: dict[str, str] = {}
    if device == "cpu":
        lines.append("instance_group { kind: KIND_CPU count: 1 }")
    else:
        graphs = "true" if variant in _WITH_GRAPHS else "false"
        lines.append("instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }")
        lines.append(f"optimization {{ cuda {{ graphs: {graphs} }} }}")
        keys["overlap"] = "true" if variant in _WITH_OVERLAP else "false"
        if variant in _WITH_GRAPHS:
            keys["graph_batch_sizes"] = ",".join(map(str, spec.sizes.graph_batch_sizes))
    keys |= parameters or {}
    lines += [f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in keys.items()]
    return "\n".join(lines) + "\n"
