"""Inference by stock tritonclient, in every form its four clients offer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from stock_clients import KINDS, NUMPY_BY_DATATYPE, Array, StockClient
from tritonclient.utils import InferenceServerException

from sample_models import DATATYPES, write_models
from server_process import ServerProcess, StartServer

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)
ONES = np.ones((1, 16), np.float32)
FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)


def values_of(datatype: str) -> Array:
    if datatype == "BYTES":
        return np.array([b"", b"plain", "naïve \U0001f600".encode(), b"\0\xff\xfe" * 9], np.object_)
    dtype = NUMPY_BY_DATATYPE[datatype]
    if datatype == "BOOL":
        return np.array([True, False, True])
    if datatype.startswith(("INT", "UINT")):
        whole = np.iinfo(dtype)
        return np.array([whole.min, 0, 1, whole.max], dtype)
    limits: Any = ml_dtypes.finfo(dtype) if datatype == "BF16" else np.finfo(dtype)
    return np.array([limits.min, -1.5, 0, limits.smallest_subnormal, limits.max], dtype)


class TestDatatypes:
    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_comes_back_bit_for_bit(self, client: StockClient, datatype: str) -> None:
        values = values_of(datatype)
        back = client.infer(f"identity_{datatype.lower()}", {"IN": values}).as_numpy("OUT")
        assert back.dtype == values.dtype
        assert back.tolist() == values.tolist()

    @pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("BF16", "FP16")])
    def test_json(self, http_client: StockClient, datatype: str) -> None:
        values = values_of(datatype)
        if datatype == "BYTES":
            values = np.array([b"", "naïve \U0001f600".encode(), b'"quoted"\n'], np.object_)
        result = http_client.infer(f"identity_{datatype.lower()}", {"IN": values}, ["OUT"], binary=False)
        assert "parameters" not in result.get_output("OUT")
        back = result.as_numpy("OUT").tolist()
        # A JSON string is text; the stock client leaves it so.
        assert [each.encode() if datatype == "BYTES" else each for each in back] == values.tolist()

    def test_bf16_has_no_json_form(self, http_client: StockClient) -> None:
        sent = http_client.input("IN", np.ones(3, ml_dtypes.bfloat16))
        with pytest.raises(InferenceServerException, match=r"BF16.*binary"):
            http_client.call("infer", "identity_bf16", [sent], outputs=[http_client.output("OUT", binary=False)])

    @pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
    def test_an_empty_tensor(self, client: StockClient, datatype: str) -> None:
        values = np.zeros(0, NUMPY_BY_DATATYPE[datatype])
        result = client.infer(f"identity_{datatype.lower()}", {"IN": values})
        assert result.as_numpy("OUT").shape == (0,)

    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice to tritonclient
    def test_a_large_tensor(self, client: StockClient) -> None:
        values = np.random.default_rng(1).standard_normal(1 << 20)
        assert np.array_equal(client.infer("identity_fp64", {"IN": values}).as_numpy("OUT"), values)

    def test_strings_through_onnx(self, client: StockClient) -> None:
        words = np.array([b"low", b"latency"], np.object_)
        assert client.infer("upper", {"TEXT": words}).as_numpy("UPPER").tolist() == [b"LOW", b"LATENCY"]


class TestAnswers:
    @pytest.mark.parametrize("binary", [True, False])
    def test_every_output(self, client: StockClient, binary: bool) -> None:
        result = client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, ["OUTPUT0", "OUTPUT1"], binary=binary)
        assert np.array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + 1)
        assert np.array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - 1)

    def test_one_output_of_two(self, client: StockClient) -> None:
        result = client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, ["OUTPUT1"])
        assert np.array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - 1)
        assert result.as_numpy("OUTPUT0") is None

    def test_the_order_of_inputs_and_outputs_is_the_callers(self, client: StockClient) -> None:
        result = client.infer("add_sub", {"INPUT1": ONES, "INPUT0": SIXTEEN}, ["OUTPUT1", "OUTPUT0"])
        assert np.array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - 1)
        assert [output["name"] for output in _message(client, result)["outputs"]] == ["OUTPUT1", "OUTPUT0"]

    def test_a_batch(self, client: StockClient) -> None:
        rows = np.arange(5 * 16, dtype=np.float32).reshape(5, 16)
        result = client.infer("add_sub", {"INPUT0": rows, "INPUT1": rows})
        assert np.array_equal(result.as_numpy("OUTPUT0"), rows * 2)

    @pytest.mark.parametrize("request_id", ["", "agent-7/42", "naïve"])
    def test_the_id_comes_back_if_sent(self, client: StockClient, request_id: str) -> None:
        result = client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, request_id=request_id)
        message = _message(client, result)
        assert message.get("id", "") == request_id
        assert ("id" in message) == bool(request_id)
        assert message["model_name"] == "add_sub"
        assert message["model_version"] == "1"

    def test_versions(self, client: StockClient) -> None:
        for version, added in (("1", 1), ("2", 2), ("", 2)):
            result = client.infer("versions", {"X": FOUR}, model_version=version)
            assert np.array_equal(result.as_numpy("Y"), FOUR + added)
            assert _message(client, result)["model_version"] == str(added)

    def test_a_model_without_configuration(self, client: StockClient) -> None:
        assert np.array_equal(client.infer("no_config", {"X": FOUR}).as_numpy("Y"), FOUR + 1)

    def test_torch(self, tmp_path: Path, server_factory: StartServer) -> None:
        with server_factory(write_models(tmp_path / "models", "torch_script")) as server:
            for kind in KINDS:
                client = StockClient(kind, server)
                assert np.array_equal(client.infer("torch_script", {"X": FOUR}).as_numpy("Y"), FOUR * 3)
                client.close()

    def test_an_ensemble_of_three_steps(self, client: StockClient) -> None:
        before = client.count("double")["inferences"]
        result = client.infer("pipeline", {"A": SIXTEEN, "B": ONES})
        assert np.array_equal(result.as_numpy("TOTAL"), 2 * (SIXTEEN + 1))
        assert np.array_equal(result.as_numpy("PART"), 2 * (SIXTEEN - 1))
        assert client.count("double")["inferences"] == before + 2

    def test_one_output_of_an_ensemble(self, client: StockClient) -> None:
        result = client.infer("pipeline", {"A": SIXTEEN, "B": ONES}, ["PART"])
        assert np.array_equal(result.as_numpy("PART"), 2 * (SIXTEEN - 1))
        assert result.as_numpy("TOTAL") is None

    def test_a_cached_answer_is_seen_in_the_statistics(self, client: StockClient) -> None:
        values = np.full((1, 4), KINDS.index(client.kind), np.float32)
        before = client.count("cached")
        for _ in range(3):
            assert np.array_equal(client.infer("cached", {"X": values}).as_numpy("Y"), values + 1)
        after = client.count("cached")
        assert after["cache_miss"] - before["cache_miss"] == 1
        assert after["cache_hit"] - before["cache_hit"] == 2
        assert after["executions"] - before["executions"] == 1
        assert after["success"] - before["success"] == 3


class TestClassification:
    def test_labels(self, client: StockClient) -> None:
        sent = client.input("X", np.array([[0.5, 4, 1, -2]], np.float32))
        result = client.call("infer", "classify", [sent], outputs=[client.output("SCORES", class_count=2)])
        assert result.as_numpy("SCORES").tolist() == [[b"4.000000:1:dog", b"1.000000:2:bird"]]

    def test_more_classes_than_there_are(self, client: StockClient) -> None:
        sent = client.input("X", np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32))
        result = client.call("infer", "classify", [sent], outputs=[client.output("SCORES", class_count=9)])
        found = result.as_numpy("SCORES")
        assert found.shape == (2, 4)
        assert found[0, 0] == b"4.000000:3:fish"
        assert found[1, 0] == b"4.000000:0:cat"

    def test_without_labels(self, client: StockClient) -> None:
        sent = [client.input("INPUT0", SIXTEEN), client.input("INPUT1", ONES)]
        result = client.call("infer", "add_sub", sent, outputs=[client.output("OUTPUT0", class_count=1)])
        assert result.as_numpy("OUTPUT0").tolist() == [[b"16.000000:15"]]

    def test_as_json(self, http_client: StockClient) -> None:
        sent = http_client.input("X", np.array([[0.5, 4, 1, -2]], np.float32), binary=False)
        output = http_client.output("SCORES", binary=False, class_count=1)
        result = http_client.call("infer", "classify", [sent], outputs=[output])
        assert result.get_output("SCORES")["data"] == ["4.000000:1:dog"]


class TestCompression:
    @pytest.mark.parametrize("request_algorithm", ["gzip", "deflate", None])
    @pytest.mark.parametrize("response_algorithm", ["gzip", "deflate", None])
    def test_http(self, http_client: StockClient, request_algorithm: str, response_algorithm: str) -> None:
        values = np.arange(5000, dtype=np.int64)
        result = http_client.infer(
            "identity_int64",
            {"IN": values},
            ["OUT"],
            request_compression_algorithm=request_algorithm,
            response_compression_algorithm=response_algorithm,
        )
        assert np.array_equal(result.as_numpy("OUT"), values)

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_grpc(self, grpc_client: StockClient, algorithm: str) -> None:
        values = np.arange(5000, dtype=np.int64)
        result = grpc_client.infer("identity_int64", {"IN": values}, compression_algorithm=algorithm)
        assert np.array_equal(result.as_numpy("OUT"), values)


class TestConcurrently:
    def test_async_infer_of_the_http_client(self, sample_server: ServerProcess) -> None:
        with tritonclient.http.InferenceServerClient(sample_server.http_url, concurrency=4) as raw:
            pending = [raw.async_infer("add_sub", _inputs(tritonclient.http, number)) for number in range(24)]
            answers = [request.get_result().as_numpy("OUTPUT1")[0, 0] for request in pending]
        assert answers == list(range(24))

    def test_async_infer_of_the_grpc_client(self, sample_server: ServerProcess) -> None:
        answers: dict[int, Any] = {}
        done = threading.Semaphore(0)

        def note(number: int, result: Any, error: Any) -> None:
            answers[number] = error or result.as_numpy("OUTPUT1")[0, 0]
            done.release()

        with tritonclient.grpc.InferenceServerClient(sample_server.grpc_url) as raw:
            for number in range(24):
                raw.async_infer(
                    "add_sub",
                    _inputs(tritonclient.grpc, number),
                    callback=lambda result, error, number=number: note(number, result, error),
                )
            assert all(done.acquire(timeout=60) for _ in range(24))
        assert answers == {number: number for number in range(24)}


class TestErrors:
    """Each says what was wrong, with the code the protocol has for it."""

    @pytest.mark.parametrize(
        ("model", "version", "status", "text"),
        [
            ("nobody", "", ("404", "NOT_FOUND"), "Request for unknown model: 'nobody' is not found"),
            ("add_sub", "7", ("404", "NOT_FOUND"), "Request for unknown model: 'add_sub' version 7 is not found"),
            ("repeat", "", None, "decoupled"),
        ],
    )
    def test_model(
        self, client: StockClient, model: str, version: str, status: tuple[str, str] | None, text: str
    ) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, {"IN": np.ones(1, np.int32)}, model_version=version)
        assert text in caught.value.message()
        if status is not None:
            assert caught.value.status() == (status[0] if client.is_http else f"StatusCode.{status[1]}")

    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            ({"INPUT0": SIXTEEN}, ["INPUT1", "add_sub"]),
            ({"INPUT0": SIXTEEN, "INPUT1": ONES, "INPUT2": ONES}, ["INPUT2", "add_sub"]),
            ({"INPUT0": SIXTEEN, "INPUT1": ONES.astype(np.float64)}, ["INPUT1", "FP64", "FP32"]),
            ({"INPUT0": SIXTEEN, "INPUT1": ONES[:, :8]}, ["INPUT1", "[1,8]", "[-1,16]"]),
            ({"INPUT0": SIXTEEN, "INPUT1": np.ones((2, 16), np.float32)}, ["INPUT1"]),
            ({"INPUT0": np.ones((9, 16), np.float32), "INPUT1": np.ones((9, 16), np.float32)}, ["9", "8", "add_sub"]),
        ],
        ids=["missing", "unknown", "datatype", "shape", "rows", "batch"],
    )
    def test_inputs(self, client: StockClient, inputs: dict[str, Array], words: list[str]) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("add_sub", inputs)
        assert caught.value.status() == ("400" if client.is_http else "StatusCode.INVALID_ARGUMENT")
        for word in words:
            assert word in caught.value.message().replace(", ", ",")

    def test_an_unknown_output(self, client: StockClient) -> None:
        with pytest.raises(InferenceServerException, match=r"OUTPUT9.*add_sub|add_sub.*OUTPUT9"):
            client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, ["OUTPUT9"])

    def test_a_model_that_raises(self, client: StockClient) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("raises", {"X": -FOUR})
        assert "model 'raises' version 1: infer raised ValueError: X is negative (model.py:4)" in caught.value.message()
        assert caught.value.status() == ("500" if client.is_http else "StatusCode.INTERNAL")
        assert np.array_equal(client.infer("raises", {"X": FOUR}).as_numpy("Y"), FOUR)


def _inputs(module: Any, number: int) -> list[Any]:
    made = []
    for name, value in (("INPUT0", number), ("INPUT1", 0)):
        each = module.InferInput(name, [1, 16], "FP32")
        each.set_data_from_numpy(np.full((1, 16), value, np.float32))
        made.append(each)
    return made


def _message(client: StockClient, result: Any) -> dict[str, Any]:
    message: dict[str, Any] = result.get_response() if client.is_http else result.get_response(as_json=True)
    return message
