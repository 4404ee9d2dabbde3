"""Model control, readiness, statistics and what is said of unknown models, beside real Triton."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from calls import COMPARED, GrpcAnswer, Pair, grpc_raw, http
from peer_models import MODELS, wrapped
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.peers

LOAD, UNLOAD = "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"
ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.5]}]}


@pytest.fixture(autouse=True)
def _identity_is_served(pair: Pair) -> Iterator[None]:
    yield
    pair.same_http("POST", LOAD.format("identity"))


def ready(pair: Pair, model: str, version: str = "") -> bool:
    """As all four ways to ask say, of both servers."""
    part = f"/versions/{version}" if version else ""
    theirs, ours = pair.http("GET", f"/v2/models/{model}{part}/ready")
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    message = pair.same_grpc("ModelReady", pb.ModelReadyRequest(name=model, version=version))
    is_ready = pb.ModelReadyResponse.FromString(message).ready
    assert is_ready == (ours.status == 200)
    for module in (triton_http, triton_grpc):
        for server in pair.both:
            with module.InferenceServerClient(server.http if module is triton_http else server.grpc) as client:
                assert client.is_model_ready(model, version) is is_ready
        COMPARED[pair.group] += 1
    return is_ready


@pytest.mark.parametrize(
    ("model", "version", "expected"),
    [
        ("identity", "", True),
        ("identity", "1", True),
        ("identity", "9", False),
        ("nope", "", False),
        ("nope", "1", False),
    ],
)
def test_readiness(pair: Pair, model: str, version: str, expected: bool) -> None:
    assert ready(pair, model, version) is expected


def test_readiness_follows_a_load_at_once(pair: Pair) -> None:
    for _ in range(2):
        pair.same_http("POST", UNLOAD.format("identity"))
        assert not ready(pair, "identity")
        pair.same_http("POST", LOAD.format("identity"))
        assert ready(pair, "identity")
        pair.same_grpc("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="identity"))
        assert not ready(pair, "identity")
        pair.same_grpc("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="identity"))
        assert ready(pair, "identity")
        pair.same_http("POST", "/v2/models/identity/infer", ONE)


def test_unloading_what_is_not_loaded(pair: Pair) -> None:
    for model in ("nope", "identity", "identity"):
        pair.same_http("POST", UNLOAD.format(model))
        pair.same_grpc("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=model))


def test_an_unloaded_model(pair: Pair) -> None:
    """docs/protocol.md: 503, to be tried elsewhere, where Triton has 404 unless the request names a version."""
    pair.same_http("POST", UNLOAD.format("identity"))
    words = "Request for unknown model: 'identity' has no available versions"
    for call in (
        ("POST", "/v2/models/identity/infer", ONE),
        ("GET", "/v2/models/identity"),
        ("GET", "/v2/models/identity/config"),
        ("POST", "/v2/models/identity/generate", {"INPUT0": 1.5}),
    ):
        their, our = pair.http(*call)
        assert their.status == 404
        assert words in their.error
        # A gateway may know of no worker that has it, which is 404 in any case.
        assert our.status == (503 if pair.ours.name == "worker" else our.status)
        assert "Request for unknown model: 'identity'" in our.error or "identity" in our.error


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("nope", "", "requested model 'nope' is not available"),
        ("identity", "9", "requested model version is not available for model 'identity'"),
    ],
)
def test_statistics_of_unknown_models(pair: Pair, model: str, version: str, words: str) -> None:
    part = f"/versions/{version}" if version else ""
    pair.http_error(words, ("GET", f"/v2/models/{model}{part}/stats"))
    pair.grpc_error(words, "ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version))


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("nope", "", "Request for unknown model: 'nope' is not found"),
        ("identity", "9", "Request for unknown model: 'identity' version 9 is not found"),
    ],
)
def test_unknown_models(pair: Pair, model: str, version: str, words: str) -> None:
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    for call in (("GET", path), ("GET", f"{path}/config"), ("POST", f"{path}/infer", ONE)):
        pair.http_error(words, call)
    for method, message in (
        ("ModelMetadata", pb.ModelMetadataRequest(name=model, version=version)),
        ("ModelConfig", pb.ModelConfigRequest(name=model, version=version)),
        ("ModelInfer", pb.ModelInferRequest(model_name=model, model_version=version)),
    ):
        pair.grpc_error(words, method, message)


#: Where Triton calls every failed load a fault of its own, ours says whose it is (docs/protocol.md).
POLL = "failed to load '{}', failed to poll from model repository"


@pytest.mark.parametrize(
    ("model", "parameters", "status", "code"),
    [
        ("nope", {}, 404, "NOT_FOUND"),
        ("identity", {"config": "{"}, 400, "INVALID_ARGUMENT"),
        ("identity", {"config": '{"backend": "python", "max_batch_size": -3}'}, 400, "INVALID_ARGUMENT"),
        ("identity", {"config": '{"input": [{"name": "x", "data_type": "TYPE_NO"}]}'}, 400, "INVALID_ARGUMENT"),
        ("identity", {"config": '{"backend": "\\ud800"}'}, 400, "INVALID_ARGUMENT"),
        ("identity", {"file:1/model.py": b"x"}, 400, "INVALID_ARGUMENT"),
    ],
)
def test_loads_that_fail(pair: Pair, model: str, parameters: Any, status: int, code: str) -> None:
    words = POLL.format(model)
    pair.http_error(words, ("POST", LOAD.format(model), load_body(parameters)), status, 500)
    pair.grpc_error(words, "RepositoryModelLoad", load_message(model, parameters), code, "INTERNAL")
    # What was served goes on.
    assert ready(pair, "identity")


def load_body(parameters: Any, encode: Callable[[bytes], bytes] = base64.b64encode) -> Any:
    plain = {key: encode(value).decode() if isinstance(value, bytes) else value for key, value in parameters.items()}
    return {"parameters": plain}


def load_message(model: str, parameters: Any) -> Any:
    message = pb.RepositoryModelLoadRequest(model_name=model)
    for key, value in parameters.items():
        if isinstance(value, bytes):
            message.parameters[key].bytes_param = value
        else:
            message.parameters[key].string_param = value
    return message


def test_a_version_that_does_not_load(pair: Pair) -> None:
    """Each server gets the same text: no Python at all."""
    config = json.dumps({"backend": "python", **_SIGNATURE})
    parameters = {"config": config, "file:1/model.py": b"this is no python"}
    words = "load failed for model 'broken'"
    their, our = pair.http("POST", LOAD.format("broken"), load_body(parameters))
    assert words in their.error
    assert words in our.error
    their, our = pair.grpc("RepositoryModelLoad", load_message("broken", parameters))
    assert words in their.details
    assert words in our.details
    assert not ready(pair, "broken")


_SIGNATURE = {
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes], ids=["one line", "line breaks"])
def test_files_in_a_load(pair: Pair, encode: Callable[[bytes], bytes]) -> None:
    """The same model, in each server's own form."""
    config = json.dumps({"backend": "python", **_SIGNATURE})
    source = MODELS["identity"].source
    for server, text in zip(pair.both, (wrapped(source), source), strict=True):
        parameters = {"config": config, "file:1/model.py": text.encode()}
        answer = http(server, "POST", LOAD.format("brought"), load_body(parameters, encode))
        assert (answer.status, answer.body) == (200, b"")
        assert (
            grpc_raw(server, "RepositoryModelLoad", load_message("again", parameters).SerializeToString()).code == "OK"
        )
    COMPARED[pair.group] += 2
    for model in ("brought", "again"):
        assert ready(pair, model, "1")
        theirs, ours = pair.http("POST", f"/v2/models/{model}/infer", ONE)
        assert ours.body == theirs.body
        pair.same_http("POST", UNLOAD.format(model))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"config": b"x"}, "'config'"), ({"nope": "x"}, "'nope'"), ({"file:1/model.py": "x"}, "'file:1/model.py'")],
)
def test_load_parameters_of_the_wrong_kind(pair: Pair, parameters: Any, words: str) -> None:
    pair.grpc_error(words, "RepositoryModelLoad", load_message("identity", parameters))


def test_the_index_has_the_same_models_and_states(pair: Pair) -> None:
    theirs, ours = pair.http("POST", "/v2/repository/index", {"ready": True})
    rows = [{(row["name"], row["version"], row["state"]) for row in answer.value} for answer in (theirs, ours)]
    assert rows[0] == rows[1]
    answers: tuple[GrpcAnswer, GrpcAnswer] = pair.grpc("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
    listed = [pb.RepositoryIndexResponse.FromString(answer.message).models for answer in answers]
    sets = [{(row.name, row.version, row.state) for row in each} for each in listed]
    assert sets[0] == sets[1] == rows[0]


@pytest.mark.parametrize("module", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_what_the_stock_control_example_does(pair: Pair, module: Any) -> None:
    seen = []
    for server in pair.both:
        with module.InferenceServerClient(server.http if module is triton_http else server.grpc) as client:
            client.load_model("identity")
            loaded = client.is_model_ready("identity")
            client.unload_model("identity")
            unloaded = client.is_model_ready("identity")
            client.unload_model("wrong_model_name")
            with pytest.raises(InferenceServerException) as caught:
                client.load_model("wrong_model_name")
            seen.append((loaded, unloaded, "failed to load" in caught.value.message()))
    COMPARED[pair.group] += 6
    assert seen == [(True, False, True)] * 2
