"""Two repositories with a model of one name, served by real Triton and by our worker with ``--model-namespacing``."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from server_process import StartServer

pytestmark = pytest.mark.peers

_TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }'
_MODEL = f'backend: "python" {_TENSORS}'
_ENSEMBLE = f"""platform: "ensemble" {_TENSORS} ensemble_scheduling {{ step {{ model_name: "step" model_version: -1
input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }} }} }}"""
_OURS = "class Model:\n    def infer(self, inputs):\n        return {{'Y': inputs['X'] * {factor}}}\n"
_TRITON = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("Y", each * {factor})]) for each in given]
"""


def write(directory: Path, source: str) -> list[Path]:
    for namespace, factor in (("a", 2), ("b", 10)):
        for name, config in (("step", _MODEL), (f"own_{namespace}", _MODEL), (f"graph_{namespace}", _ENSEMBLE)):
            model = directory / namespace / name
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(f'name: "{name}" {config}')
            if config == _MODEL:
                (model / "1" / "model.py").write_text(source.format(factor=factor))
    return [directory / "a", directory / "b"]


@pytest.fixture(scope="module")
def addresses(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Ours first."""
    with ExitStack() as stack:
        directory = stack.enter_context(scratch("namespaces"))
        first, second = write(directory / "models", _TRITON)
        flags = (f"--model-repository={second}", "--model-namespacing=true")
        peer = stack.enter_context(
            triton.serve_repository(first, environment_python(""), directory, ("graph_a",), flags)
        )
        first, second = write(tmp_path_factory.mktemp("namespaces") / "models", _OURS)
        flags = (f"--model-repository={second}", "--model-namespacing=true")
        worker = stack.enter_context(server_factory(first, *flags))
        yield [worker.http_url, str(peer.http_url).removeprefix("http://")]


def infer(address: str, model: str) -> tuple[int, Any]:
    body = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [3.0]}]}).encode()
    try:
        with urllib.request.urlopen(f"http://{address}/v2/models/{model}/infer", body, timeout=60) as answer:
            return answer.status, json.load(answer)["outputs"][0]["data"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


def test_steps_mean_the_model_beside_them_and_the_plain_name_is_ambiguous(addresses: list[str]) -> None:
    models = ("graph_a", "graph_b", "own_a", "own_b", "step")
    ours, theirs = ({model: infer(address, model) for model in models} for address in addresses)
    assert ours == theirs
    assert (ours["graph_a"], ours["graph_b"]) == ((200, [6.0]), (200, [30.0]))
    assert ours["step"][0] == 400


def test_the_plain_name_is_ambiguous_everywhere(addresses: list[str]) -> None:
    for path in ("/v2/models/step", "/v2/models/step/config"):
        statuses = set()
        for address in addresses:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://{address}{path}", timeout=60)
            with refused.value as error:
                statuses.add((error.code, json.load(error)["error"]))
        assert len(statuses) == 1, statuses
