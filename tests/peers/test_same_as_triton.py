"""The same requests to real Triton and to our worker: the same codes, the same keys, the same answers.

Each test asks both servers and compares; where docs/protocol.md says that ours differs, the test says how. Messages are
for people and are not compared, but for the words that clients match.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException
from worker_models import TRITON_MODELS, write_for_triton

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from server_process import ServerProcess

pytestmark = pytest.mark.peers


@dataclass(frozen=True)
class Pair:
    """host:port of both servers, ours first."""

    http: tuple[str, str]
    grpc: tuple[str, str]


@pytest.fixture(scope="module")
def pair(worker: ServerProcess) -> Iterator[Pair]:
    with scratch("same") as directory:
        repository = write_for_triton(directory / "models")
        with triton.serve_repository(repository, environment_python(""), directory, TRITON_MODELS) as peer:
            address = str(peer.http_url).removeprefix("http://")
            yield Pair((worker.http_url, address), (worker.grpc_url, str(peer.grpc_address)))


def http(address: str, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    request = urllib.request.Request(f"http://{address}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    try:
        return status, json.loads(text) if text else None
    except ValueError:
        return status, None


def tensor(name: str = "INPUT0", shape: tuple[int, ...] = (2,), datatype: str = "FP32", data: Any = (1.0, 2.0)) -> Any:
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": list(data)}


def pair_of(shape: tuple[int, ...] = (1, 4)) -> list[Any]:
    count = int(np.prod(shape))
    return [tensor(f"INPUT{index}", shape, data=[1.0] * count) for index in range(2)]


GOOD = {"inputs": [tensor()]}
INFER = "/v2/models/identity/infer"
ADD = "/v2/models/add_sub/infer"

HTTP_TABLE: dict[str, tuple[str, str, Any]] = {
    "live": ("GET", "/v2/health/live", None),
    "ready": ("GET", "/v2/health/ready", None),
    "server metadata": ("GET", "/v2", None),
    "model metadata": ("GET", "/v2/models/identity", None),
    "version metadata": ("GET", "/v2/models/identity/versions/1", None),
    "model ready": ("GET", "/v2/models/identity/ready", None),
    "config": ("GET", "/v2/models/identity/config", None),
    "statistics": ("GET", "/v2/models/identity/stats", None),
    "all statistics": ("GET", "/v2/models/stats", None),
    "index": ("POST", "/v2/repository/index", {}),
    "infer": ("POST", INFER, GOOD),
    "infer with id": ("POST", INFER, {**GOOD, "id": "abc"}),
    "infer a version": ("POST", "/v2/models/identity/versions/1/infer", GOOD),
    "infer chosen outputs": ("POST", ADD, {"inputs": pair_of(), "outputs": [{"name": "OUTPUT1"}]}),
    "classification": (
        "POST",
        ADD,
        {"inputs": pair_of(), "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}]},
    ),
    "unknown model": ("POST", "/v2/models/nope/infer", GOOD),
    "unknown version": ("POST", "/v2/models/identity/versions/9/infer", GOOD),
    "unknown output": ("POST", INFER, {**GOOD, "outputs": [{"name": "nope"}]}),
    "missing input": ("POST", ADD, {"inputs": pair_of()[:1]}),
    "extra input": ("POST", INFER, {"inputs": [tensor(), tensor("INPUT9")]}),
    "no inputs": ("POST", INFER, {"inputs": []}),
    "wrong datatype": ("POST", INFER, {"inputs": [tensor(datatype="INT32", data=[1, 2])]}),
    "unknown datatype": ("POST", INFER, {"inputs": [tensor(datatype="FP8")]}),
    "wrong shape": ("POST", ADD, {"inputs": pair_of((1, 5))}),
    "wrong rank": ("POST", INFER, {"inputs": [tensor(shape=(1, 2))]}),
    "count against shape": ("POST", INFER, {"inputs": [tensor(shape=(3,))]}),
    "batch too large": ("POST", ADD, {"inputs": pair_of((9, 4))}),
    "malformed JSON": ("POST", INFER, b'{"inputs": ['),
    "empty body": ("POST", INFER, b""),
    "JSON of another kind": ("POST", INFER, b"[]"),
    "unknown path": ("GET", "/v2/nowhere", None),
    "metadata of an unknown model": ("GET", "/v2/models/nope", None),
    "config of an unknown model": ("GET", "/v2/models/nope/config", None),
    "statistics of an unknown model": ("GET", "/v2/models/nope/stats", None),
    "load without control": ("POST", "/v2/repository/models/identity/load", {}),
    "wrong method": ("GET", INFER, None),
}

#: Where ours has a code of its own, on purpose: (ours, Triton's). docs/protocol.md: an invalid argument is 400;
#: Triton 2.51 calls some its own fault, and reads an empty body as a tensor.
DIFFERENT = {
    "count against shape": (400, 500),
    "malformed JSON": (400, 500),
    "JSON of another kind": (400, 500),
    "empty body": (400, 200),
}


def encoded(body: Any) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


@pytest.mark.parametrize("case", HTTP_TABLE)
def test_http_answers_alike(pair: Pair, case: str) -> None:
    method, path, body = HTTP_TABLE[case]
    (our_status, ours), (their_status, theirs) = (http(address, method, path, encoded(body)) for address in pair.http)
    if case in DIFFERENT:
        assert (our_status, their_status) == DIFFERENT[case], (ours, theirs)
    else:
        assert our_status == their_status, (ours, theirs)
    if our_status >= 400:
        assert isinstance(ours["error"], str)
        return
    assert shape_of(theirs) <= shape_of(ours), shape_of(theirs) - shape_of(ours)


#: Keys of Triton's answers that ours leaves out, on purpose: features that this server does not have.
OMITTED = ("optimization",)


def shape_of(value: Any, path: str = "") -> set[str]:
    """The paths of all keys: what a client can look up."""
    if isinstance(value, dict):
        found: set[str] = set()
        for key, inner in value.items():
            here = f"{path}.{key}".strip(".")
            if not here.startswith(OMITTED):
                found |= {here} | shape_of(inner, here)
        return found
    if isinstance(value, list):
        return set().union(*(shape_of(item, f"{path}[]") for item in value)) if value else set()
    return set()


@pytest.mark.parametrize("case", ["infer", "infer with id", "infer chosen outputs", "classification"])
def test_http_outputs_are_equal(pair: Pair, case: str) -> None:
    method, path, body = HTTP_TABLE[case]
    ours, theirs = (http(address, method, path, encoded(body))[1] for address in pair.http)
    assert ours == theirs


def test_words_that_clients_match(pair: Pair) -> None:
    for address in pair.http:
        _, answer = http(address, "POST", "/v2/models/nope/infer", encoded(GOOD))
        assert "Request for unknown model: 'nope' is not found" in answer["error"]


@pytest.mark.parametrize(
    ("length", "body"),
    [("1000", b"{}"), ("-1", b"{}"), ("x", b"{}")],
)
def test_wrong_header_lengths(pair: Pair, length: str, body: bytes) -> None:
    ours, theirs = (
        http(address, "POST", INFER, body, **{"Inference-Header-Content-Length": length})[0] for address in pair.http
    )
    assert ours == theirs == 400


@pytest.mark.parametrize("size", [4, 12])
def test_wrong_binary_sizes(pair: Pair, size: int) -> None:
    header = {"name": "INPUT0", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [header]}).encode()
    fields = {"Inference-Header-Content-Length": str(len(text))}
    ours, theirs = (http(address, "POST", INFER, text + b"\0" * size, **fields)[0] for address in pair.http)
    assert ours == theirs == 400


@pytest.mark.parametrize("binary", [True, False])
def test_stock_http_client_gets_the_same(pair: Pair, binary: bool) -> None:
    words = np.array([b"alpha", "βήτα".encode(), b""], np.object_)
    floats = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    results = []
    for address in pair.http:
        with triton_http.InferenceServerClient(address) as client:
            text = triton_http.InferInput("INPUT0", [3], "BYTES")
            text.set_data_from_numpy(words, binary_data=binary)
            wanted = [triton_http.InferRequestedOutput("OUTPUT0", binary_data=binary)]
            echoed = client.infer("text", [text], outputs=wanted).as_numpy("OUTPUT0")
            inputs = []
            for name in ("INPUT0", "INPUT1"):
                inputs.append(triton_http.InferInput(name, [3, 4], "FP32"))
                inputs[-1].set_data_from_numpy(floats, binary_data=binary)
            added = client.infer("add_sub", inputs, request_id="7")
            results.append((echoed.tolist(), added.as_numpy("OUTPUT0").tolist(), added.get_response()["id"]))
    assert results[0] == results[1]


def grpc_request(model: str = "identity", version: str = "", **changes: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    fields = {"name": "INPUT0", "datatype": "FP32", "shape": [2], **changes}
    message.inputs.add(**fields)
    message.raw_input_contents.append(b"\0" * 8)
    return message


def with_contents() -> Any:
    message = grpc_request()
    message.inputs[0].contents.fp32_contents.extend([1, 2])
    return message


def with_raw(*raw: bytes) -> Any:
    message = grpc_request()
    del message.raw_input_contents[:]
    message.raw_input_contents.extend(raw)
    return message


def with_output(name: str) -> Any:
    message = grpc_request()
    message.outputs.add(name=name)
    return message


def batch(rows: int, names: tuple[str, ...] = ("INPUT0", "INPUT1")) -> Any:
    message = service_pb2.ModelInferRequest(model_name="add_sub")
    for name in names:
        message.inputs.add(name=name, datatype="FP32", shape=[rows, 4])
        message.raw_input_contents.append(b"\0" * 16 * rows)
    return message


GRPC_TABLE = {
    "good": grpc_request(),
    "batched": batch(3),
    "unknown model": grpc_request("nope"),
    "unknown version": grpc_request(version="9"),
    "wrong datatype": grpc_request(datatype="INT32"),
    "wrong shape": grpc_request(shape=[3]),
    "negative shape": grpc_request(shape=[-2]),
    "unknown input": grpc_request(name="nope"),
    "missing input": batch(1, ("INPUT0",)),
    "extra input": batch(1, ("INPUT0", "INPUT1", "INPUT2")),
    "batch too large": batch(9),
    "unknown output": with_output("nope"),
    "contents and raw": with_contents(),
    "too few raw": with_raw(),
    "short raw": with_raw(b"\0" * 4),
}


@pytest.mark.parametrize("case", GRPC_TABLE)
def test_grpc_answers_alike(pair: Pair, case: str) -> None:
    codes = []
    answers = []
    for address in pair.grpc:
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                answers.append(stub.ModelInfer(GRPC_TABLE[case], timeout=60))
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
    assert codes[0] == codes[1]
    if answers:
        assert answers[0] == answers[1]


def test_a_raw_tensor_too_many_is_refused_where_triton_drops_it(pair: Pair) -> None:
    with grpc.insecure_channel(pair.grpc[0]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="expected 1 entries") as refused:
            stub.ModelInfer(with_raw(b"\0" * 8, b"\0" * 8), timeout=60)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_grpc_control_answers_have_the_same_fields(pair: Pair) -> None:
    seen = []
    for address in pair.grpc:
        with triton_grpc.InferenceServerClient(address) as client:
            metadata = client.get_model_metadata("add_sub", as_json=True)
            index = client.get_model_repository_index(as_json=True)
            statistics = client.get_inference_statistics("add_sub", as_json=True)
            config = client.get_model_config("add_sub", as_json=True)
            with pytest.raises(InferenceServerException) as unknown:
                client.get_model_metadata("nope")
            rows = {row["name"]: (row["version"], row["state"]) for row in index["models"] if row["name"] != "slow"}
            seen.append(
                (
                    {key: metadata[key] for key in ("name", "versions", "inputs", "outputs")},
                    rows,
                    sorted(statistics["model_stats"][0]["inference_stats"]),
                    {key: config["config"][key] for key in ("name", "backend", "max_batch_size", "input", "output")},
                    unknown.value.status(),
                )
            )
    assert seen[0] == seen[1]


def test_digests_are_ours_alone(pair: Pair) -> None:
    """docs/protocol.md: metadata and index carry a digest, in keys that Triton does not use."""
    (_, ours), (_, theirs) = (http(address, "GET", "/v2/models/identity") for address in pair.http)
    assert ours["parameters"]["digest"].startswith("sha256:")
    assert "parameters" not in theirs


def test_a_missed_deadline_is_504_where_triton_has_500_or_worse(worker: ServerProcess) -> None:
    """docs/protocol.md: a missed deadline has its own code in ours."""
    body = {"inputs": [tensor()], "parameters": {"timeout": 1}}
    status, answer = http(worker.http_url, "POST", "/v2/models/slow/infer", encoded(body))
    assert status == 504, answer
