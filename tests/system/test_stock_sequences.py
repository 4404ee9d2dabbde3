"""Sequences by the stock clients: state follows the sequence's id, whatever comes between."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

MODELS = ("accumulate", "accumulate_oldest", "accumulate_state")

_numbers = itertools.count(1000)


def send(client: StockClient, model: str, sequence_id: int | str, value: int, **flags: Any) -> Any:
    dtype = np.float32 if model == "accumulate_state" else np.int32
    result = client.infer(model, {"IN": np.array([[value]], dtype)}, sequence_id=sequence_id, **flags)
    return result.as_numpy("SUM")[0, 0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", [int, str])
def test_interleaved_sequences_keep_their_own_state(client: StockClient, model: str, form: Any) -> None:
    ids = [form(next(_numbers)) for _ in range(3)]
    expected = dict.fromkeys(ids, 0)
    for step in range(4):
        for factor, sequence_id in enumerate(ids, 1):
            value = factor * (step + 1)
            expected[sequence_id] += value
            total = send(client, model, sequence_id, value, sequence_start=step == 0, sequence_end=step == 3)
            assert total == expected[sequence_id]


@pytest.mark.parametrize("model", MODELS)
def test_a_new_start_forgets(client: StockClient, model: str) -> None:
    sequence_id = next(_numbers)
    assert send(client, model, sequence_id, 5, sequence_start=True) == 5
    assert send(client, model, sequence_id, 5) == 10
    assert send(client, model, sequence_id, 1, sequence_start=True) == 1
    assert send(client, model, sequence_id, 1, sequence_end=True) == 2


@pytest.mark.parametrize("model", MODELS)
def test_one_request_that_starts_and_ends(client: StockClient, model: str) -> None:
    assert send(client, model, next(_numbers), 7, sequence_start=True, sequence_end=True) == 7


@pytest.mark.parametrize("model", MODELS)
def test_the_first_request_must_say_so(client: StockClient, model: str) -> None:
    sequence_id = next(_numbers)
    with pytest.raises(InferenceServerException) as caught:
        send(client, model, sequence_id, 1)
    assert caught.value.status() == ("400" if client.is_http else "StatusCode.INVALID_ARGUMENT")
    for word in (f"{sequence_id}", model, "START"):
        assert word in caught.value.message()


def test_an_id_is_needed(client: StockClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("accumulate", {"IN": np.array([[1]], np.int32)})
    assert "accumulate" in caught.value.message()
    assert "correlation ID" in caught.value.message()
    assert caught.value.status() == ("400" if client.is_http else "StatusCode.INVALID_ARGUMENT")
