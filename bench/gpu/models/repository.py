"""Writes the model repository of the GPU benches.

Weights are random from a seed: a file is made where it is served, and carries nothing. Programs are exported on the
device that will run them, with a free batch size. Variants of a model (with and without graphs, with and without
overlap) are models of their own that share the file. Version 2 of the recommender has other weights.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.models.specs import (
    ENCODER,
    ENCODER_AOTI,
    MODELS,
    RESNET,
    RESNET_UINT8,
    SAMPLES,
    TWO_TOWER,
    VARIANTS,
    ModelSpec,
    Sizes,
    config_text,
    spec_of,
    variant_name,
)

_SEED = 20_240
FILE = "model.pt2"


def compute_alike(device: str) -> None:
    """On a CPU, one thread for every process that starts from now on, before any of them imports torch.

    ``torch.set_num_threads`` leaves the math library's own threads alone: raw then ran on two and the worker on one,
    and on busy cores the worker seemed three times as fast as its model.
    """
    if device == "cpu":
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def build(spec: ModelSpec, device: str, version: int = 1) -> Any:
    """The module with its weights, on the device: half precision on a GPU, single on a CPU."""
    import torch

    from bench.gpu.models import networks

    sizes = spec.sizes
    torch.manual_seed(_SEED + version)
    module: Any
    if spec.name in (RESNET, RESNET_UINT8):
        module = networks.ResNet(sizes.blocks, sizes.width, sizes.classes).to(device)
        pictures = spec_of(RESNET, sizes).samples(SAMPLES)["image"]
        networks.calibrate(module, torch.from_numpy(pictures).to(device))
        if spec.name == RESNET_UINT8:
            module = networks.ByteResNet(module)
        module = module.to(memory_format=torch.channels_last)
    elif spec.name == TWO_TOWER:
        module = networks.TwoTower(sizes.users, sizes.items, sizes.embedding, sizes.dense)
    else:
        module = networks.Encoder(sizes.layers, sizes.hidden, sizes.heads, sizes.tokens, sizes.vocabulary)
    return module.to(device=device, dtype=torch.float32 if device == "cpu" else torch.float16).eval()


def export(spec: ModelSpec, device: str, version: int = 1) -> Any:
    """The exported program, for 1 to 128 rows."""
    import torch

    arguments = tuple(torch.from_numpy(rows).to(device) for rows in spec.samples(4).values())
    rows = torch.export.Dim("batch", min=1, max=128)
    dynamic = {tensor.name: {0: rows} for tensor in spec.inputs}
    with torch.no_grad():
        return torch.export.export(build(spec, device, version), arguments, dynamic_shapes=dynamic, strict=False)


def write_program(spec: ModelSpec, device: str, path: Path, version: int = 1) -> Path:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    program = export(spec, device, version)
    torch.export.save(program, str(path))
    # torch warns that weights in another order than C's, as channels_last makes them, may not be saved correctly.
    arguments = [torch.from_numpy(rows).to(device) for rows in spec.samples(4).values()]
    with torch.no_grad():
        expected, given = program.module()(*arguments), torch.export.load(str(path)).module()(*arguments)
    if not torch.allclose(expected, given, rtol=1e-2, atol=1e-2 * float(expected.abs().max())):
        raise RuntimeError(f"{path}: the saved program does not compute what the exported one does")
    return path


def write_package(spec: ModelSpec, device: str, path: Path) -> Path:
    """The same program, compiled by AOTInductor."""
    import torch
    import torch._inductor

    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(export(spec, device), package_path=str(path))
    return path


def write_repository(
    directory: Path,
    device: str,
    sizes: Sizes,
    models: Sequence[str] = MODELS,
    variants: Sequence[str] = VARIANTS,
    parameters: dict[str, str] | None = None,
) -> Path:
    """Writes what is missing; a file that is there is kept, a config.pbtxt is written again."""
    for model in models:
        base = spec_of(ENCODER if model == ENCODER_AOTI else model, sizes)
        file = directory / model / "1" / FILE
        if not file.exists():
            began = time.monotonic()
            (write_package if model == ENCODER_AOTI else write_program)(base, device, file)
            print(f"{model}: {file.stat().st_size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s", file=sys.stderr)
        if model == TWO_TOWER and not (second := directory / model / "2" / FILE).exists():
            write_program(base, device, second, version=2)
        for variant in variants:
            name = variant_name(model, variant)
            link = directory / name / "1" / FILE
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, link)
            text = config_text(spec_of(name, sizes), device, variant, parameters)
            (directory / name / "config.pbtxt").write_text(text)
    return directory
