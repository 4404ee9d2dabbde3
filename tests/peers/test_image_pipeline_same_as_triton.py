"""The models of examples/image_pipeline in real Triton and in our worker: the same files, the same answers.

Triton runs the ONNX model of the pipeline in its python backend: its package has no other.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException

from bench.worker.peers.process import environment_python, scratch
from bench.worker.peers.triton import serve_repository
from documented import EXAMPLES
from server_process import StartServer

pytestmark = pytest.mark.peers

EXAMPLE = EXAMPLES / "image_pipeline"
MODELS = ("decode", "normalise", "classifier", "postprocess", "image_classification")
CLASSIFIER = """
from pathlib import Path

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        file = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "normalised").as_numpy()
            (logits,) = self.session.run(["logits"], {"normalised": array})
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("logits", logits)]))
        return responses
"""


def asked(url: str, files: list[bytes]) -> Any:
    """Labels and scores, or the code of an error and its text."""
    image = http.InferInput("image", [len(files), 1], "BYTES")
    image.set_data_from_numpy(np.array(files, np.object_).reshape(-1, 1))
    client = http.InferenceServerClient(url)
    try:
        answer = client.infer("image_classification", [image])
    except InferenceServerException as error:
        return error.status(), error.message()
    finally:
        client.close()
    return answer.as_numpy("labels").tolist(), answer.as_numpy("scores")


def test_pictures_get_the_same_labels(server_factory: StartServer, tmp_path: Path) -> None:
    build = runpy.run_path(str(EXAMPLE / "picture_models.py"))["build"]
    picture = runpy.run_path(str(EXAMPLE / "picture_client.py"))["picture"]
    calls = [
        [picture("tomato")],
        [picture(colour, 40, 90, "PNG") for colour in ("navy", "lime", "white", "gold")],
        [picture("cyan"), b"no picture"],
    ]
    with server_factory(build(tmp_path / "models")) as server:
        ours = [asked(server.http_url, files) for files in calls]
    with scratch("images") as directory:
        repository = build(directory / "models")
        (repository / "classifier" / "1" / "model.py").write_text(CLASSIFIER)
        config = repository / "classifier" / "config.pbtxt"
        config.write_text(config.read_text().replace('"onnxruntime"', '"python"'))
        with serve_repository(repository, environment_python(""), directory, MODELS) as triton:
            theirs = [asked(str(triton.http_url).removeprefix("http://"), files) for files in calls]
    for (labels, scores), (their_labels, their_scores) in zip(ours[:2], theirs[:2], strict=True):
        assert labels == their_labels
        np.testing.assert_allclose(scores, their_scores, atol=1e-5)
    assert ours[0][0][0][0] == b"red"
    assert ours[2][0] == theirs[2][0] == "400"
    for _, text in (ours[2], theirs[2]):
        assert "image 1: expected a JPEG or PNG file, given 10 bytes that are none" in text
