"""Stock tritonclient through a gateway with two workers: every form of inference, and errors as the worker words them.

The gateway never reads a tensor, so what is shown here is that it changes none, and that nobody can tell it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from stock_clients import Array, StockClient
from tritonclient.utils import InferenceServerException

from gateway_process import Fleet

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)
ONES = np.ones((1, 16), np.float32)
FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)

VALUES: dict[str, Array] = {
    "FP32": np.array([np.finfo(np.float32).min, -0.0, 1.5], np.float32),
    "FP16": np.array([-1.5, 65504, 6e-8], np.float16),
    "BF16": np.array([-1.5, 3e38, 1e-38], ml_dtypes.bfloat16),
    "INT64": np.array([np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max], np.int64),
    "BOOL": np.array([True, False, True]),
    "BYTES": np.array([b"", b"\0\xff\xfe", "naïve \U0001f600".encode()], np.object_),
}


@pytest.fixture
def direct_client(gateway_client: StockClient, fleet: Fleet) -> Iterator[StockClient]:
    """The same kind of client, connected to a worker."""
    made = StockClient(gateway_client.kind, fleet.workers[0])
    yield made
    made.close()


class TestTensors:
    @pytest.mark.parametrize("datatype", VALUES)
    def test_bit_for_bit(self, gateway_client: StockClient, datatype: str) -> None:
        values = VALUES[datatype]
        back = gateway_client.infer(f"identity_{datatype.lower()}", {"IN": values}).as_numpy("OUT")
        assert back.dtype == values.dtype
        assert back.tolist() == values.tolist()

    @pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL"])
    def test_json(self, gateway_client: StockClient, datatype: str) -> None:
        if not gateway_client.is_http:
            return
        values = VALUES[datatype]
        result = gateway_client.infer(f"identity_{datatype.lower()}", {"IN": values}, ["OUT"], binary=False)
        assert result.as_numpy("OUT").tolist() == values.tolist()

    def test_empty(self, gateway_client: StockClient) -> None:
        back = gateway_client.infer("identity_fp32", {"IN": np.zeros(0, np.float32)}).as_numpy("OUT")
        assert back.shape == (0,)

    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice to tritonclient
    @pytest.mark.parametrize("count", [30_000, 40_000, 70_000, 1 << 20])
    def test_around_the_sizes_at_which_the_way_changes(self, gateway_client: StockClient, count: int) -> None:
        """240 KB, 320 KB, 560 KB, 8 MB: joined, passed on as it comes, received into a buffer of its own."""
        values = np.random.default_rng(count).standard_normal(count)
        back = gateway_client.infer("identity_fp64", {"IN": values}).as_numpy("OUT")
        assert np.array_equal(back, values)

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed(self, gateway_client: StockClient, algorithm: str) -> None:
        values = np.arange(5000, dtype=np.int64)
        both: dict[str, Any] = (
            {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
            if gateway_client.is_http
            else {"compression_algorithm": algorithm}
        )
        result = gateway_client.infer("identity_int64", {"IN": values}, ["OUT"], **both)
        assert np.array_equal(result.as_numpy("OUT"), values)


class TestAnswers:
    @pytest.mark.parametrize("request_id", ["", "agent-7/42", "naïve"])
    def test_name_version_and_id(self, gateway_client: StockClient, request_id: str) -> None:
        result = gateway_client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, request_id=request_id)
        message = result.get_response() if gateway_client.is_http else result.get_response(as_json=True)
        assert message.get("id", "") == request_id
        assert (message["model_name"], message["model_version"]) == ("add_sub", "1")
        assert np.array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - 1)

    def test_versions(self, gateway_client: StockClient) -> None:
        for version, added in (("1", 1), ("2", 2), ("", 2)):
            result = gateway_client.infer("versions", {"X": FOUR}, model_version=version)
            assert np.array_equal(result.as_numpy("Y"), FOUR + added)

    def test_an_ensemble(self, gateway_client: StockClient) -> None:
        result = gateway_client.infer("pipeline", {"A": SIXTEEN, "B": ONES})
        assert np.array_equal(result.as_numpy("TOTAL"), 2 * (SIXTEEN + 1))

    def test_classes(self, gateway_client: StockClient) -> None:
        sent = gateway_client.input("X", np.array([[0.5, 4, 1, -2]], np.float32))
        wanted = [gateway_client.output("SCORES", class_count=2)]
        result = gateway_client.call("infer", "classify", [sent], outputs=wanted)
        assert result.as_numpy("SCORES").tolist() == [[b"4.000000:1:dog", b"1.000000:2:bird"]]

    def test_a_name_with_odd_characters_goes_through_as_one(self, gateway_client: StockClient) -> None:
        with pytest.raises(InferenceServerException, match=r"'a b%2Fc' is not found"):
            gateway_client.infer("a b%2Fc", {"IN": FOUR})


#: (model, inputs, keywords of infer)
MISTAKES: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    "unknown model": ("nobody", {"IN": FOUR}, {}),
    "unknown version": ("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, {"model_version": "7"}),
    "version that is no number": ("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, {"model_version": "newest"}),
    "missing input": ("add_sub", {"INPUT0": SIXTEEN}, {}),
    "unknown input": ("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES, "INPUT2": ONES}, {}),
    "datatype": ("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES.astype(np.float64)}, {}),
    "shape": ("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES[:, :8]}, {}),
    "batch": ("add_sub", {"INPUT0": np.ones((9, 16), np.float32), "INPUT1": np.ones((9, 16), np.float32)}, {}),
    "decoupled": ("repeat", {"IN": np.ones(1, np.int32)}, {}),
    "the model raises": ("raises", {"X": -FOUR}, {}),
    "no correlation id": ("accumulate", {"IN": np.array([[1]], np.int32)}, {}),
}


class TestErrors:
    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_as_the_worker_words_them(
        self, gateway_client: StockClient, direct_client: StockClient, mistake: str
    ) -> None:
        model, inputs, keywords = MISTAKES[mistake]
        told = []
        for client in (gateway_client, direct_client):
            with pytest.raises(InferenceServerException) as caught:
                client.infer(model, inputs, **keywords)
            told.append((caught.value.status(), caught.value.message()))
        assert told[0] == told[1]

    def test_an_unknown_output(self, gateway_client: StockClient, direct_client: StockClient) -> None:
        told = []
        for client in (gateway_client, direct_client):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": ONES}, ["OUTPUT9"])
            told.append((caught.value.status(), caught.value.message()))
        assert told[0] == told[1]

    def test_a_mistake_is_not_sent_twice(self, gateway_client: StockClient) -> None:
        """A model that raises raises elsewhere too."""
        before = gateway_client.count("raises")["fail"]
        with pytest.raises(InferenceServerException):
            gateway_client.infer("raises", {"X": -FOUR})
        assert gateway_client.count("raises")["fail"] == before + 1
