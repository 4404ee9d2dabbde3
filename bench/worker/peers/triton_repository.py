"""Writes the model repository of real Triton, with the same names, shapes and weights as our worker's.

The pip-installable Triton has one backend, `python`; the perceptrons therefore run through onnxruntime inside it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.worker.models import (
    IDENTITY_BATCHED,
    IDENTITY_MODELS,
    MAX_BATCH,
    PERCEPTRONS,
    batching,
    identity_configs,
    instance_group,
    tensors,
)
from bench.worker.peers.process import SERVERS

MODEL_NAMES = (*IDENTITY_MODELS, IDENTITY_BATCHED, *(perceptron.name for perceptron in PERCEPTRONS))


def write_triton_repository(
    directory: Path,
    onnx_files: Mapping[str, Path],
    *,
    intra_op_threads: int = 1,
    instances: int = 1,
    queue_timeout_microseconds: int | None = None,
) -> Path:
    """Writes every bench model for Triton's python backend; returns the directory."""
    group = instance_group(instances)
    for name, config in identity_configs(group).items():
        _write_model(directory / name, config, SERVERS / "triton_identity.py")
    for perceptron in PERCEPTRONS:
        parameters = {
            "onnx_file": str(onnx_files[perceptron.name].resolve()),
            "intra_op_threads": str(intra_op_threads),
        }
        config = (
            f'name: "{perceptron.name}"\nbackend: "python"\nmax_batch_size: {MAX_BATCH}\n'
            f"{tensors(str(perceptron.width))}{batching(queue_timeout_microseconds)}{group}"
        )
        for key, value in parameters.items():
            config += f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        _write_model(directory / perceptron.name, config, SERVERS / "triton_onnx.py")
    return directory


def _write_model(directory: Path, config: str, source: Path) -> None:
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(config)
    shutil.copyfile(source, version / "model.py")
