"""The model repository that the hostile suites attack: echoes, a sum, a large answer, a slow one."""

from __future__ import annotations

import textwrap
from pathlib import Path

_ECHO = """
class Model:
    def infer(self, inputs):
        return {"y": inputs["x"]}
"""

_SUM = """
class Model:
    def infer(self, inputs):
        return {"sum": inputs["a"] + inputs["b"]}
"""

#: One element in, ``size`` floats out: an answer far larger than its request.
_LARGE = """
import numpy as np

class Model:
    def infer(self, inputs):
        return {"y": np.zeros(int(inputs["size"][0]), np.float32)}
"""

#: The same, late: hundreds of requests have come before the first is answered.
_LATE = """
import time
import numpy as np

class Model:
    def infer(self, inputs):
        time.sleep(0.03)
        return {"y": np.zeros(int(inputs["size"][0]), np.float32)}
"""


def _tensor(kind: str, name: str, datatype: str, dims: str) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'


def write_model(repository: Path, name: str, config: str, source: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}')
    (version / "model.py").write_text(textwrap.dedent(source))


def write_repository(repository: Path) -> Path:
    """Writes every model; returns the repository."""
    write_model(repository, "echo", _tensor("input", "x", "FP32", "-1") + _tensor("output", "y", "FP32", "-1"), _ECHO)
    write_model(
        repository, "text", _tensor("input", "x", "STRING", "-1") + _tensor("output", "y", "STRING", "-1"), _ECHO
    )
    write_model(repository, "int8", _tensor("input", "x", "INT8", "-1") + _tensor("output", "y", "INT8", "-1"), _ECHO)
    write_model(
        repository,
        "batched",
        "max_batch_size: 8\ndynamic_batching { }\n"
        + _tensor("input", "x", "FP32", "4")
        + _tensor("output", "y", "FP32", "4"),
        _ECHO,
    )
    write_model(
        repository,
        "sum",
        _tensor("input", "a", "FP32", "2") + _tensor("input", "b", "FP32", "2") + _tensor("output", "sum", "FP32", "2"),
        _SUM,
    )
    for name, source in (("large", _LARGE), ("late", _LATE)):
        write_model(
            repository, name, _tensor("input", "size", "INT32", "1") + _tensor("output", "y", "FP32", "-1"), source
        )
    return repository
