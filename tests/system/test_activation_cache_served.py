"""The activation cache in a real worker: over HTTP and gRPC, in an ensemble, across a reload, and its alarm.

The models return the corner of a picture. The plane of a picture of 224×224 does not read that pixel: what is hidden
from similarity can be set at will.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper

from sample_models import onnx_bytes, write_config, write_onnx
from server_process import ServerProcess, StartServer

Array = np.ndarray[Any, Any]
SIDE = 224


def corner_model(added: float) -> bytes:
    """corner = picture[:, 0, 0, :] + added."""
    nodes = [
        helper.make_node("Slice", ["picture", "starts", "ends", "axes"], ["pixel"]),
        helper.make_node("Cast", ["pixel"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Squeeze", ["floats", "axes"], ["flat"]),
        helper.make_node("Add", ["flat", "added"], ["corner"]),
    ]
    numbers = [
        helper.make_tensor("starts", TensorProto.INT64, [2], [0, 0]),
        helper.make_tensor("ends", TensorProto.INT64, [2], [1, 1]),
        helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
        helper.make_tensor("added", TensorProto.FLOAT, [], [added]),
    ]
    return onnx_bytes(
        nodes,
        [("picture", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])],
        [("corner", TensorProto.FLOAT, ["batch", 3])],
        numbers,
    )


def write_corner(directory: Path, added: float = 0.0, **settings: str) -> None:
    write_onnx(directory, corner_model(added))
    parameters = "".join(
        f'parameters {{ key: "activation_cache{"_" + key if key != "scopes" else ""}"'
        f' value {{ string_value: "{value}" }} }}\n'
        for key, value in settings.items()
    )
    write_config(directory, "max_batch_size: 8\n" + parameters)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("activations") / "models"
    exact = {"scopes": "temporal,spatial", "age_ms": "3600000", "grid": "5,5"}
    write_corner(root / "corner", **exact, sample_share="0")
    write_corner(root / "reloaded", **exact, sample_share="0")
    write_corner(root / "monitored", **exact, sample_share="0.2", error_budget="0.1")
    write_corner(root / "plain")
    write_onnx(
        root / "head",
        onnx_bytes(
            [helper.make_node("Add", ["x", "x"], ["y"])],
            [("x", TensorProto.FLOAT, ["batch", 3])],
            [("y", TensorProto.FLOAT, ["batch", 3])],
        ),
    )
    write_config(
        root / "pipeline",
        """
        platform: "ensemble"
        max_batch_size: 8
        input [ { name: "image" data_type: TYPE_UINT8 dims: [ 224, 224, 3 ] } ]
        output [ { name: "result" data_type: TYPE_FP32 dims: [ 3 ] } ]
        ensemble_scheduling { step [
          { model_name: "corner" model_version: -1
            input_map { key: "picture" value: "image" } output_map { key: "corner" value: "features" } },
          { model_name: "head" model_version: -1
            input_map { key: "x" value: "features" } output_map { key: "y" value: "result" } } ] }
        """,
    )
    (root / "pipeline" / "1").mkdir()
    return root


@pytest.fixture(scope="module")
def server(repository: Path, server_factory: StartServer) -> Any:
    arguments = ("--model-control-mode", "explicit", "--load-model", "*", "--http-header-forward-pattern", "x-agent-id")
    with server_factory(repository, *arguments) as started:
        yield started


def picture(seed: int, corner: int) -> Array:
    made = np.kron(np.random.default_rng(seed).integers(0, 256, (28, 28, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    made[0, 0] = corner
    return made


class Answer:
    def __init__(self, values: Array, parameters: dict[str, Any]) -> None:
        self.values = values.reshape(-1, 3)[:, 0].tolist()
        self.outcome = parameters.get("activation_cache")
        self.similarity = parameters.get("activation_cache_similarity")


def over_http(server: ServerProcess, model: str, pictures: Array, parameters: dict[str, Any], names: Any) -> Answer:
    entry = tritonclient.http.InferInput(names[0], list(pictures.shape), "UINT8")
    entry.set_data_from_numpy(pictures)
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, [entry], parameters=parameters)
    values = result.as_numpy(names[1])
    assert values is not None
    return Answer(values, result.get_response().get("parameters", {}))


def over_grpc(server: ServerProcess, model: str, pictures: Array, parameters: dict[str, Any], names: Any) -> Answer:
    entry = tritonclient.grpc.InferInput(names[0], list(pictures.shape), "UINT8")
    entry.set_data_from_numpy(pictures)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        result = client.infer(model, [entry], parameters=parameters)
    values = result.as_numpy(names[1])
    assert values is not None
    received = {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in result.get_response().parameters.items()
    }
    return Answer(values, received)


def ask(
    server: ServerProcess,
    model: str,
    pictures: Array,
    send: Any = over_http,
    names: tuple[str, str] = ("picture", "corner"),
    **parameters: Any,
) -> Answer:
    batch = pictures if pictures.ndim == 4 else pictures[None]
    answer: Answer = send(server, model, batch, parameters, names)
    return answer


def metric(server: ServerProcess, name: str, model: str, more: str = "") -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    begins, label = f'isochrone_activation_cache_{name}{{model="{model}"', f"{more}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(begins) and label in line)


@pytest.mark.parametrize("send", [over_http, over_grpc])
def test_outputs_are_reused_until_the_picture_changes(server: ServerProcess, send: Any) -> None:
    camera = f"front {send.__name__}"
    first = ask(server, "corner", picture(1, 10), send, camera=camera)
    assert (first.values, first.outcome, first.similarity) == ([10.0], "miss", None)
    second = ask(server, "corner", picture(1, 99), send, camera=camera)
    assert (second.values, second.outcome, second.similarity) == ([10.0], "hit", 1.0)
    # After a cut the first answer is of the new scene, and so are those that follow.
    assert ask(server, "corner", picture(2, 20), send, camera=camera).values == [20.0]
    again = ask(server, "corner", picture(2, 77), send, camera=camera)
    assert (again.values, again.outcome) == ([20.0], "hit")
    # Another camera, and none.
    assert ask(server, "corner", picture(2, 30), send, camera=camera + " rear").values == [30.0]
    plain = ask(server, "corner", picture(2, 40), send)
    assert (plain.values, plain.outcome) == ([40.0], None)


def test_a_forwarded_header_names_the_camera(server: ServerProcess) -> None:
    outcomes = []
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        for agent in ("robot-7", "robot-7", "robot-8"):
            entry = tritonclient.http.InferInput("picture", [1, SIDE, SIDE, 3], "UINT8")
            entry.set_data_from_numpy(picture(11, 10)[None])
            result = client.infer("corner", [entry], headers={"X-Agent-Id": agent})
            outcomes.append(result.get_response()["parameters"]["activation_cache"])
    assert outcomes == ["miss", "hit", "miss"]


def test_agents_share_a_place(server: ServerProcess) -> None:
    ask(server, "corner", picture(3, 10), camera="a", tile="18/1/2")
    other = ask(server, "corner", picture(3, 20), over_grpc, camera="b", tile="18/1/2")
    assert (other.values, other.outcome) == ([10.0], "hit")
    assert ask(server, "corner", picture(3, 30), camera="b", tile="18/1/3").outcome == "miss"
    ask(server, "corner", picture(4, 10), pose="12.0,3.0")
    assert ask(server, "corner", picture(4, 20), pose="14.9,0.5").values == [10.0]
    assert ask(server, "corner", picture(4, 30), pose="15.1,0.5").values == [30.0]
    assert metric(server, "hits_total", "corner", 'scope="spatial"') == 2


def test_several_rows_and_malformed_places_are_not_reused(server: ServerProcess) -> None:
    rows = np.stack([picture(5, 10), picture(6, 20)])
    for _ in range(2):
        answer = ask(server, "corner", rows, camera="rows")
        assert (answer.values, answer.outcome) == ([10.0, 20.0], None)
    assert metric(server, "misses_total", "corner", 'reason="rows"') == 2
    with pytest.raises(tritonclient.http.InferenceServerException, match="activation_cache_grid"):
        ask(server, "corner", picture(5, 10), pose="north")


def test_models_without_it_know_nothing_of_it(server: ServerProcess) -> None:
    for corner in (10, 20):
        answer = ask(server, "plain", picture(1, corner), camera="front")
        assert (answer.values, answer.outcome) == ([float(corner)], None)
    assert metric(server, "hits_total", "plain") == 0


def test_in_an_ensemble_features_are_reused_and_the_head_runs(server: ServerProcess) -> None:
    names = ("image", "result")
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        before = client.get_inference_statistics("head")["model_stats"][0]["inference_count"]
        assert ask(server, "pipeline", picture(7, 10), names=names, camera="pipeline").values == [20.0]
        assert ask(server, "pipeline", picture(7, 50), names=names, camera="pipeline").values == [20.0]
        assert client.get_inference_statistics("head")["model_stats"][0]["inference_count"] == before + 2


def test_a_hit_is_a_success_without_inference(server: ServerProcess) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        before = client.get_inference_statistics("corner")["model_stats"][0]
        for corner in range(4):
            ask(server, "corner", picture(8, corner), camera="counted")
        after = client.get_inference_statistics("corner")["model_stats"][0]
    counted = after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"]
    assert (counted, after["inference_count"] - before["inference_count"]) == (4, 1)
    assert after["inference_stats"]["cache_hit"]["count"] == 0


@pytest.mark.parametrize("send", [over_http, over_grpc])
def test_a_reloaded_version_never_answers_with_what_another_computed(
    server: ServerProcess, repository: Path, send: Any
) -> None:
    camera = f"reload {send.__name__}"
    old = ask(server, "reloaded", picture(9, 10), send, camera=camera).values[0]
    assert ask(server, "reloaded", picture(9, 10), send, camera=camera).outcome == "hit"
    write_onnx(repository / "reloaded", corner_model(old + 1000))
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.load_model("reloaded")
    new = ask(server, "reloaded", picture(9, 10), send, camera=camera)
    assert (new.values, new.outcome) == ([old + 1010], "miss")
    assert ask(server, "reloaded", picture(9, 10), send, camera=camera).values == [old + 1010]


def test_the_alarm_suspends_reuse_until_the_error_is_small_again(server: ServerProcess) -> None:
    ask(server, "monitored", picture(10, 10), camera="alarm")
    # The hidden pixel changes: reuse would answer 10, and a sample finds out.
    outcomes = []
    while "suspended" not in outcomes:
        answer = ask(server, "monitored", picture(10, 200), camera="alarm")
        outcomes.append(answer.outcome)
        assert answer.values == ([10.0] if answer.outcome == "hit" else [200.0])
        assert len(outcomes) < 100, outcomes
    assert metric(server, "alarm", "monitored") == 1
    assert metric(server, "error", "monitored", "") > 0.1
    # It lasts while the error does.
    assert {ask(server, "monitored", picture(10, 200), camera="alarm").outcome for _ in range(5)} == {"suspended"}
    # It ends when what is computed is again what reuse would have answered.
    for _ in range(200):
        if ask(server, "monitored", picture(10, 10), camera="alarm").outcome == "hit":
            break
    else:
        raise AssertionError("the alarm did not end")
    assert metric(server, "alarm", "monitored") == 0
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        lines = [event for event in server.log_events() if event.get("model") == "monitored"]
        warned = [event for event in lines if "suspended" in event["event"]]
        if warned and any("error budget again" in event["event"] for event in lines):
            break
        time.sleep(0.05)
    assert len(warned) == 1
    assert warned[0]["level"] == "warning"


def test_a_model_that_cannot_have_it_is_rejected_at_load(server: ServerProcess, repository: Path) -> None:
    write_onnx(
        repository / "row",
        onnx_bytes(
            [helper.make_node("Add", ["x", "x"], ["y"])],
            [("x", TensorProto.FLOAT, ["batch", 3])],
            [("y", TensorProto.FLOAT, ["batch", 3])],
        ),
    )
    settings = 'parameters { key: "activation_cache" value { string_value: "temporal" } }'
    write_config(repository / "row", f"max_batch_size: 8\n{settings}")
    with (
        tritonclient.http.InferenceServerClient(server.http_url) as client,
        pytest.raises(tritonclient.http.InferenceServerException, match="activation_cache_layout"),
    ):
        client.load_model("row")
