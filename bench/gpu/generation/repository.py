"""The models of the generation bench: one of random weights, made by ``scripts/make_generation_model.py``, and a folder
with a config.pbtxt of its own for each variant, which shares the files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.generation.workload import Lengths
from bench.worker.peers.process import REPOSITORY_ROOT


@dataclass(frozen=True)
class Sizes:
    """A model, and requests that suit it."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    vocabulary: int
    dtype: str
    #: Most rows of a step, and tokens that the cache holds.
    rows: int
    cache_tokens: int
    prompts: Lengths
    answers: Lengths
    #: Of long prompts that arrive beside streams; and the streams.
    long_prompt: int
    background: int
    context: int = 4096


_CHAT = {"prompts": Lengths(16, 512), "answers": Lengths(16, 256)}
SIZES = {
    each.name: each
    for each in (
        Sizes("small", 12, 768, 12, 12, 32_000, "bfloat16", 256, 400_000, **_CHAT, long_prompt=2000, background=32),
        Sizes("1b", 24, 2048, 16, 16, 32_000, "bfloat16", 256, 200_000, **_CHAT, long_prompt=2000, background=32),
        # For a CPU.
        Sizes(
            *("cpu", 4, 256, 8, 4, 4096, "float32", 32, 60_000),
            *(Lengths(8, 128), Lengths(8, 64)),
            long_prompt=1000,
            background=4,
        ),
        # To check that everything works.
        Sizes(
            *("tiny", 2, 64, 4, 2, 1024, "float32", 16, 20_000),
            *(Lengths(8, 32), Lengths(4, 16)),
            long_prompt=300,
            background=2,
            context=1024,
        ),
    )
}


def write_model(directory: Path, sizes: Sizes) -> Path:
    """Makes the model, unless it is there; returns the folder of its version."""
    version = directory / sizes.name / "1"
    if not (version / "model.safetensors").exists():
        partial = directory / f"{sizes.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        script = REPOSITORY_ROOT / "scripts" / "make_generation_model.py"
        words = [sys.executable, script, partial, "--name", sizes.name, "--random-weights", "--dtype", sizes.dtype]
        for name in ("layers", "width", "heads", "kv_heads", "vocabulary", "context"):
            words += [f"--{name.replace('_', '-')}", str(getattr(sizes, name))]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{script.name} failed: {(done.stderr or done.stdout)[-1000:]}")
        version.parent.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(version.parent, ignore_errors=True)
        (partial / sizes.name).replace(version.parent)
        partial.rmdir()
    return version


def write_variant(repository: Path, name: str, version: Path, parameters: Mapping[str, str], device: str) -> None:
    """A model of the repository with the files of ``version`` and its own parameters."""
    own = repository / name / "1"
    own.mkdir(parents=True, exist_ok=True)
    for path in version.iterdir():
        if not (own / path.name).exists():
            try:
                os.link(path, own / path.name)
            except OSError:  # another file system
                shutil.copyfile(path, own / path.name)
    kind = "KIND_CPU" if device == "cpu" else "KIND_GPU"
    lines = [f'name: "{name}"', 'backend: "generation"', f"instance_group {{ kind: {kind} }}"]
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    (own.parent / "config.pbtxt").write_text("\n".join(lines) + "\n")


_METRIC = re.compile(r"^isochrone_generation_(\w+?)(?:_total)?\{[^}]*\} (\S+)$", re.MULTILINE)


def read_metrics(page: str) -> dict[str, float]:
    """The counts and gauges of a page with one generating model: ``steps``, ``blocks_in_use``, ``running``, …

    Those of one name are added up: ``refusals`` has one for each code.
    """
    found: dict[str, float] = {}
    for name, value in _METRIC.findall(page):
        found[name] = found.get(name, 0.0) + float(value)
    return found
