"""The models that both servers serve in these tests, each from one source.

Triton's python backend wants a ``TritonPythonModel``: the wrapper calls the same ``Model.infer``, request by request,
so that both servers compute the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_IDENTITY = 'class Model:\n    def infer(self, inputs):\n        return {"OUTPUT0": inputs["INPUT0"]}\n'
_ADD_SUB = """class Model:
    def infer(self, inputs):
        a, b = inputs["INPUT0"], inputs["INPUT1"]
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}
"""
_TRUE_COUNT = """import numpy as np


class Model:
    def infer(self, inputs):
        given = inputs["INPUT0"]
        return {"OUTPUT0": np.array([given.astype(np.int64).sum()], np.int64)}
"""
_WORDS = """class Model:
    def infer(self, inputs):
        text = inputs["text_input"].ravel()[0]
        for word in (text.decode() if isinstance(text, bytes) else text).split():
            if word == "fail":
                raise ValueError("asked to fail")
            yield {"text_output": [word]}
"""
_SHOUT = """import numpy as np


class Model:
    def infer(self, inputs):
        text = inputs["text_input"].ravel()[0]
        if text == b"fail":
            raise ValueError("asked to fail")
        return {"text_output": np.array([text.upper()], np.object_)}
"""
#: Says that it runs with one file, and goes on running while another is there: tests hold it so.
_HELD = """import time
from pathlib import Path


class Model:
    def infer(self, inputs):
        Path(ENTERED).touch()
        while Path(HOLD).exists():
            time.sleep(0.002)
        return {"OUTPUT0": inputs["INPUT0"]}
"""


@dataclass(frozen=True)
class PeerModel:
    """A model's configuration without its name and backend, and its source."""

    config: str
    source: str


def _tensors(kind: str, datatype: str, dims: str, count: int = 1) -> str:
    name = kind.upper()
    return "".join(
        f'{kind} {{ name: "{name}{index}" data_type: {datatype} dims: [ {dims} ] }}\n' for index in range(count)
    )


def _in_out(datatype: str, dims: str = "-1") -> str:
    return _tensors("input", datatype, dims) + _tensors("output", datatype, dims)


_TEXT = (
    'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
    'output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }\n'
)
_SEQUENCE = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
}
"""

MODELS = {
    "identity": PeerModel(_in_out("TYPE_FP32"), _IDENTITY),
    "doubles": PeerModel(_in_out("TYPE_FP64"), _IDENTITY),
    "text": PeerModel(_in_out("TYPE_STRING"), _IDENTITY),
    "word": PeerModel("max_batch_size: 8\n" + _in_out("TYPE_STRING", "1"), _IDENTITY),
    "add_sub": PeerModel(
        "max_batch_size: 8\n" + _tensors("input", "TYPE_FP32", "4", 2) + _tensors("output", "TYPE_FP32", "4", 2),
        _ADD_SUB,
    ),
    "flags": PeerModel(_in_out("TYPE_BOOL"), _IDENTITY),
    "true_count": PeerModel(
        _tensors("input", "TYPE_BOOL", "-1") + _tensors("output", "TYPE_INT64", "1"),
        _TRUE_COUNT,
    ),
    "words": PeerModel(_TEXT + "model_transaction_policy { decoupled: true }\n", _WORDS),
    "shout": PeerModel(_TEXT, _SHOUT),
    "held": PeerModel(
        "max_batch_size: 1\n"
        + _in_out("TYPE_FP32", "1")
        + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
        # In a process of its own: on the loop's thread of our worker it would hold up everything.
        + 'parameters { key: "isolation" value { string_value: "process" } }\n',
        _HELD,
    ),
    "held_sequence": PeerModel("max_batch_size: 1\n" + _in_out("TYPE_FP32", "1") + _SEQUENCE, _HELD),
}

_WRAPPER = """

import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.inputs = [each["name"] for each in config["input"]]
        self.model = Model()

    def tensors(self, outputs):
        found = []
        for name, value in outputs.items():
            array = value if isinstance(value, np.ndarray) else np.array(value, np.object_)
            found.append(pb.Tensor(name, array))
        return found

    def one(self, request):
        given = {name: pb.get_input_tensor_by_name(request, name) for name in self.inputs}
        given = {name: tensor.as_numpy() for name, tensor in given.items() if tensor is not None}
        if not self.decoupled:
            try:
                return pb.InferenceResponse(self.tensors(self.model.infer(given)))
            except Exception as error:
                return pb.InferenceResponse([], pb.TritonError(str(error)))
        sender = request.get_response_sender()
        try:
            for outputs in self.model.infer(given):
                sender.send(pb.InferenceResponse(self.tensors(outputs)))
        except Exception as error:
            sender.send(pb.InferenceResponse([], pb.TritonError(str(error))))
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def execute(self, requests):
        responses = [self.one(request) for request in requests]
        return None if self.decoupled else responses
"""


def wrapped(source: str) -> str:
    """A source that both servers run."""
    return source + _WRAPPER


def entered(hold: Path, for_triton: bool) -> Path:
    return hold.with_name(hold.name + (".theirs" if for_triton else ".ours"))


def write_models(directory: Path, hold: Path, *, for_triton: bool) -> Path:
    """Writes every model below ``directory``; those that wait do so while the file ``hold`` exists.

    Each of their runs leaves the file ``entered(hold, …)`` behind.
    """
    for name, model in MODELS.items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{model.config}')
        source = model.source.replace("HOLD", repr(str(hold))).replace("ENTERED", repr(str(entered(hold, for_triton))))
        (version / "model.py").write_text(wrapped(source) if for_triton else source)
    return directory
