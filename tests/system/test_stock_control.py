"""Model control by the stock clients: load, unload, overrides, the index; and the repository followed by polling."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stock_clients import KINDS, StockClient
from tritonclient.utils import InferenceServerException

from sample_models import HELD, plus_constant, write_models, write_onnx
from server_process import ServerProcess, StartServer
from watching import load_now, release_one, wait_for

FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("no_config", "versions", "pipeline", "slow", "identity_int32")
    return write_models(tmp_path_factory.mktemp("explicit") / "models", *names)


@pytest.fixture(scope="module")
def explicit_server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    arguments = ("--model-control-mode", "explicit", "--load-model", "identity_int32", "--allow-file-overrides")
    with server_factory(repository, *arguments) as server:
        yield server


@pytest.fixture(params=KINDS)
def control(request: pytest.FixtureRequest, explicit_server: ServerProcess) -> Iterator[StockClient]:
    made = StockClient(request.param, explicit_server)
    yield made
    for name in ("no_config", "versions", "pipeline", "slow"):
        if made.call("is_model_ready", name):
            made.call("unload_model", name)
    made.close()


def index(client: StockClient) -> dict[tuple[str, str], str]:
    rows = client.control("get_model_repository_index")
    rows = rows if client.is_http else rows["models"]
    return {(row["name"], row.get("version", "")): row.get("state", "") for row in rows}


def plus(client: StockClient, model: str, version: str = "") -> float:
    """What the model adds."""
    return float(client.infer(model, {"X": FOUR}, model_version=version).as_numpy("Y")[0, 0])


_SIGNATURE = {
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
}


class TestExplicit:
    def test_only_what_was_named_is_loaded(self, control: StockClient) -> None:
        rows = index(control)
        assert rows[("identity_int32", "1")] == "READY"
        assert {name for (name, _), state in rows.items() if state != "READY"} == {
            *("no_config", "versions", "pipeline", "add_sub", "double", "slow")
        }
        assert control.call("is_server_ready")
        assert not control.call("is_model_ready", "versions")

    def test_load_and_unload(self, control: StockClient) -> None:
        control.call("load_model", "versions")
        assert control.call("is_model_ready", "versions")
        assert control.call("is_model_ready", "versions", "1")
        assert not control.call("is_model_ready", "versions", "3")
        assert index(control)[("versions", "2")] == "READY"
        assert plus(control, "versions") == 2
        control.call("unload_model", "versions")
        assert not control.call("is_model_ready", "versions")
        assert index(control)[("versions", "2")] == "UNAVAILABLE"
        with pytest.raises(InferenceServerException) as caught:
            plus(control, "versions")
        assert "Request for unknown model: 'versions' has no available versions" in caught.value.message()
        assert caught.value.status() == ("503" if control.is_http else "StatusCode.UNAVAILABLE")

    def test_a_model_that_is_not_there(self, control: StockClient) -> None:
        with pytest.raises(InferenceServerException) as caught:
            control.call("load_model", "nobody")
        words = "failed to load 'nobody', failed to poll from model repository: Request for unknown model: 'nobody' is"
        assert caught.value.message().startswith(words)
        assert caught.value.status() == ("404" if control.is_http else "StatusCode.NOT_FOUND")
        # As in Triton: what is not served need not be unloaded.
        control.call("unload_model", "nobody")
        assert ("nobody", "") not in index(control)

    def test_a_configuration_in_the_request(self, control: StockClient) -> None:
        config = {"backend": "onnxruntime", "max_batch_size": 3, "version_policy": {"specific": {"versions": [1]}}}
        config["input"] = [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}]
        config["output"] = [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}]
        control.call("load_model", "versions", config=json.dumps(config))
        described = control.control("get_model_config", "versions")
        described = described if control.is_http else described["config"]
        assert described["max_batch_size"] == 3
        assert plus(control, "versions") == 1
        # Without it, the files hold again.
        control.call("load_model", "versions")
        assert plus(control, "versions") == 2

    def test_files_in_the_request(self, control: StockClient) -> None:
        config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
        control.call("load_model", "new", config=config, files={"file:5/model.onnx": plus_constant(5)})
        assert plus(control, "new") == 5
        assert index(control)[("new", "5")] == "READY"
        control.call("unload_model", "new")

    def test_files_need_a_configuration(self, control: StockClient) -> None:
        with pytest.raises(InferenceServerException, match="config"):
            control.call("load_model", "new", files={"file:5/model.onnx": plus_constant(5)})

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ("no json", "valid JSON"),
            (
                '{"max_batch_size": "many"}',
                'max_batch_size: expected an integer from -2147483648 to 2147483647, given "many"',
            ),
            ('{"no_such_key": 1}', 'given "no_such_key"'),
        ],
        ids=["no_json", "wrong_value", "unknown_key"],
    )
    def test_a_bad_configuration(self, control: StockClient, config: str, words: str) -> None:
        with pytest.raises(InferenceServerException) as caught:
            control.call("load_model", "versions", config=config)
        assert caught.value.status() == ("400" if control.is_http else "StatusCode.INVALID_ARGUMENT")
        assert caught.value.message().startswith("failed to load 'versions', failed to poll from model repository: ")
        assert "load parameter 'config'" in caught.value.message()
        assert words in caught.value.message()

    def test_a_model_that_does_not_load(self, control: StockClient) -> None:
        config = json.dumps({"backend": "python", **_SIGNATURE})
        source = b"class Model:\n    def load(self, context):\n        raise OSError('no such weights')\n\n"
        source += b"    def infer(self, inputs):\n        return {}\n"
        with pytest.raises(InferenceServerException, match=r"load failed for model 'broken': .*no such weights"):
            control.call("load_model", "broken", config=config, files={"file:1/model.py": source})
        assert index(control)[("broken", "1")] == "UNAVAILABLE"

    def test_an_ensemble_and_its_steps(self, control: StockClient) -> None:
        control.call("load_model", "add_sub")
        control.call("load_model", "pipeline")
        sixteen = np.ones((1, 16), np.float32)
        assert control.infer("pipeline", {"A": sixteen, "B": sixteen}).as_numpy("TOTAL")[0, 0] == 4
        control.call("unload_model", "add_sub")
        assert not control.call("is_model_ready", "pipeline")
        control.call("load_model", "add_sub")
        assert control.infer("pipeline", {"A": sixteen, "B": sixteen}).as_numpy("TOTAL")[0, 0] == 4
        control.call("unload_model", "pipeline", unload_dependents=True)
        for name in ("double", "pipeline"):
            assert not control.call("is_model_ready", name), name
        # Asked for by name: it stays.
        assert control.call("is_model_ready", "add_sub")
        control.call("unload_model", "add_sub")

    def test_unload_waits_for_what_is_under_way(
        self, control: StockClient, explicit_server: ServerProcess, repository: Path
    ) -> None:
        control.call("load_model", "slow")
        answers: list[Any] = []
        other = StockClient("http", explicit_server)
        under_way = threading.Thread(
            target=lambda: answers.append(
                other.infer("slow", {"MILLISECONDS": np.array([[HELD]], np.int32)}).as_numpy("SLEPT")[0, 0]
            )
        )
        under_way.start()
        wait_for(lambda: bool(load_now(explicit_server)["in_flight"] == 1))
        watcher = StockClient("http", explicit_server)

        def release() -> None:
            wait_for(lambda: not watcher.call("is_model_ready", "slow"))
            release_one(repository)

        releasing = threading.Thread(target=release)
        releasing.start()
        control.call("unload_model", "slow")
        # The answer was on its way before unload returned.
        under_way.join(60)
        releasing.join(60)
        assert answers == [HELD]
        other.close()
        watcher.close()


@pytest.mark.parametrize("kind", KINDS)
def test_control_is_refused_in_the_other_modes(sample_server: ServerProcess, kind: str) -> None:
    client = StockClient(kind, sample_server)
    for method in ("load_model", "unload_model"):
        with pytest.raises(InferenceServerException) as caught:
            client.call(method, "add_sub")
        assert "explicit model load / unload is not allowed" in caught.value.message()
        assert caught.value.status() == ("503" if client.is_http else "StatusCode.UNAVAILABLE")
    assert client.call("is_model_ready", "add_sub")
    client.close()


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes], ids=["one line", "line breaks"])
def test_http_load_takes_base64(explicit_server: ServerProcess, encode: Callable[[bytes], bytes]) -> None:
    """What the stock client sends for files is base64; spelt out here so that the form is pinned down."""
    body = {
        "parameters": {
            "config": json.dumps({"backend": "onnxruntime", "max_batch_size": 8}),
            "file:1/model.onnx": encode(plus_constant(9)).decode(),
        }
    }
    url = f"http://{explicit_server.http_url}/v2/repository/models/by_hand/load"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
        assert answer.status == 200
    client = StockClient("http", explicit_server)
    assert plus(client, "by_hand") == 9
    client.call("unload_model", "by_hand")
    client.close()


def test_polling_follows_the_files(tmp_path: Path, server_factory: StartServer) -> None:
    repository = write_models(tmp_path / "models", "no_config", "identity_int32")
    with server_factory(repository, "--model-control-mode", "poll", "--repository-poll-secs", "0.1") as server:
        client = StockClient("http", server)
        assert plus(client, "no_config") == 1
        # A new version, written beside and moved into place as a careful deployer does.
        write_onnx(tmp_path / "staging", plus_constant(2), 2)
        (tmp_path / "staging" / "2").rename(repository / "no_config" / "2")
        wait_for(lambda: plus(client, "no_config") == 2)
        write_models(tmp_path / "other", "classify")
        (tmp_path / "other" / "classify").rename(repository / "classify")
        wait_for(lambda: bool(_ready(client, "classify")))
        shutil.rmtree(repository / "identity_int32")
        wait_for(lambda: not _ready(client, "identity_int32"))
        assert client.call("is_server_ready")
        wait_for(lambda: ("identity_int32", "1") not in index(client))
        client.close()


def _ready(client: StockClient, model: str) -> bool:
    try:
        return bool(client.call("is_model_ready", model))
    except InferenceServerException:
        return False
