"""Triton's python models that hold sequences, and those that complete their configurations: real Triton and ours.

The same files under both servers, the same requests, the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from server_process import StartServer

pytestmark = pytest.mark.peers

_HEAD = """import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
"""
#: Sums by correlation id; the answer also says what the request said of its sequence.
_SUMS = (
    _HEAD
    + """    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            identity, flags = request.correlation_id(), request.flags()
            if not given["READY"].any():
                # A slot without a request.
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given["IN"])]))
                continue
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[identity] = np.zeros_like(given["IN"])
            self.sums[identity] = self.sums[identity] + given["IN"]
            said = {
                "id": identity,
                "flags": flags,
                "start": given["START"].tolist(),
                "slot": len(responses),
                "requests": len(requests),
                "shapes": {name: list(array.shape) for name, array in sorted(given.items())},
            }
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("OUT", self.sums[identity]),
                        pb_utils.Tensor("SAID", np.array([[json.dumps(said)]], dtype=object)),
                    ]
                )
            )
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[identity]
        return responses
"""
)
_SUMS_CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [ 2 ] },
  { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }
]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  %s
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""
_COMPLETES = (
    _HEAD
    + """    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config.as_dict()
        known = [each["name"] for each in config["input"]]
        if "IN" not in known:
            auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [2]})
        auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [2]})
        auto_complete_model_config.set_max_batch_size(%d)
        return auto_complete_model_config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() * 3)])
            for request in requests
        ]
"""
)
#: Model → (its code, its configuration; "": none).
MODELS = {
    "sums_direct": (_SUMS, _SUMS_CONFIG % "direct { }"),
    "sums_oldest": (_SUMS, _SUMS_CONFIG % "oldest { max_candidate_sequences: 4 }"),
    "completes_all": (_COMPLETES % 0, ""),
    "completes_batch": (_COMPLETES % 8, ""),
    "completes_rest": (
        _COMPLETES % 0,
        'backend: "python"\ninput [ { name: "IN" data_type: TYPE_INT32 dims: [ 2 ] } ]\n',
    ),
}


def write_models(directory: Path) -> Path:
    for name, (code, config) in MODELS.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "1" / "model.py").write_text(code)
        if config:
            (directory / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    return directory


@pytest.fixture(scope="module")
def addresses(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """gRPC addresses: Triton's, ours."""
    models = write_models(tmp_path_factory.mktemp("sequences") / "models")
    with (
        scratch("sequences") as directory,
        server_factory(models) as worker,
        triton.serve_repository(models, environment_python(""), directory, (), completes=True) as peer,
    ):
        yield [str(peer.grpc_address), worker.grpc_url]


def answers(address: str, model: str, calls: list[tuple[list[int], dict[str, Any]]], rows: bool) -> list[Any]:
    """Of each call: its outputs, or the words of its error."""
    found: list[Any] = []
    with closing(grpc_client.InferenceServerClient(address)) as client:
        for values, options in calls:
            array = np.array([values] if rows else values, np.int32)
            tensor = grpc_client.InferInput("IN", array.shape, "INT32")
            tensor.set_data_from_numpy(array)
            try:
                result = client.infer(model, [tensor], **options)
            except InferenceServerException as error:
                found.append(error.message())
                continue
            said = result.as_numpy("SAID")
            found.append(
                (result.as_numpy("OUT").tolist(), None if said is None else json.loads(said.reshape(-1)[0].decode()))
            )
    return found


def step(values: list[int], identity: int | str, *, start: bool = False, end: bool = False) -> tuple[list[int], Any]:
    return values, {"sequence_id": identity, "sequence_start": start, "sequence_end": end}


@pytest.mark.parametrize("model", ["sums_direct", "sums_oldest"])
def test_sequences_have_the_same_requests_and_answers(model: str, addresses: list[str]) -> None:
    calls = [
        step([1, 2], 7, start=True),
        step([10, 20], 9, start=True),
        step([1, 1], 7),
        step([5, 5], 9, end=True),
        step([2, 2], 7, end=True),
        step([3, 3], 11, start=True, end=True),
        # It has ended.
        step([1, 1], 9),
    ]
    theirs, ours = (answers(address, model, calls, rows=True) for address in addresses)
    assert ours[:-1] == theirs[:-1]
    assert ours[0][1]["shapes"].keys() == {"IN", "START", "READY", "CORRID"}
    assert isinstance(theirs[-1], str)
    assert isinstance(ours[-1], str)
    assert "must specify the START flag on the first request of the sequence" in theirs[-1]
    assert "must specify the START flag on the first request of the sequence" in ours[-1]


@pytest.mark.parametrize(
    ("model", "rows"), [("completes_all", False), ("completes_batch", True), ("completes_rest", False)]
)
def test_models_complete_the_same_configuration(model: str, rows: bool, addresses: list[str]) -> None:
    theirs, ours = (answers(address, model, [([4, 5], {})], rows) for address in addresses)
    assert ours == theirs == [([[12, 15]] if rows else [12, 15], None)]
    shown = []
    for address in addresses:
        with closing(grpc_client.InferenceServerClient(address)) as client:
            config = client.get_model_config(model, as_json=True)["config"]
            shown.append({key: config.get(key) for key in ("name", "backend", "max_batch_size", "input", "output")})
    assert shown[1] == shown[0]
