"""Two models for large bodies: one answers with the requested number of bytes, the other counts its input bytes."""

from __future__ import annotations

from pathlib import Path

PRODUCE, CONSUME = "produce", "consume"

_SOURCES = {
    PRODUCE: """
import numpy as np


class Model:
    def infer(self, inputs):
        size = int(inputs["size"][0])
        return {"bytes": np.full(size, size % 251, np.uint8)}
""",
    CONSUME: """
import numpy as np


class Model:
    def infer(self, inputs):
        return {"size": np.array([inputs["bytes"].size], np.int64)}
""",
}
_TENSORS = {
    PRODUCE: (("size", "TYPE_INT64", 1), ("bytes", "TYPE_UINT8", -1)),
    CONSUME: (("bytes", "TYPE_UINT8", -1), ("size", "TYPE_INT64", 1)),
}


def write_models(directory: Path) -> Path:
    """Write the repository; returns its directory."""
    for name, source in _SOURCES.items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(source)
        (taken, taken_type, taken_dims), (given, given_type, given_dims) = _TENSORS[name]
        (directory / name / "config.pbtxt").write_text(
            f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
            f'input {{ name: "{taken}" data_type: {taken_type} dims: {taken_dims} }}\n'
            f'output {{ name: "{given}" data_type: {given_type} dims: {given_dims} }}\n'
        )
    return directory
