"""Requests and answers of the Python client, against real servers."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import isochrone
from gateway_process import Fleet
from isochrone.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    IsochroneError,
    NotFound,
    Unavailable,
    Unsupported,
)
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME

NUMBERS = sorted(set(NUMPY_BY_NAME) - {"BYTES"})


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, 5, 200_000])
def test_arrays_of_every_type_come_back(client: Any, datatype: str, count: int) -> None:
    array = (np.arange(count) % 2).astype(NUMPY_BY_NAME[datatype])
    answer = client.infer(f"identity_{datatype.lower()}", {"IN": array})
    assert list(answer) == ["OUT"]
    assert answer["OUT"].dtype == array.dtype
    assert np.array_equal(answer["OUT"], array)


@pytest.mark.parametrize(
    "given", [["é", "b"], [b"\x00a\x00", b""], np.array(["x", "yy"]), np.array([b"x"], object), np.array([], object)]
)
def test_text_and_bytes(client: Any, given: Any) -> None:
    expected = [each.encode() if isinstance(each, str) else each for each in list(given)]
    assert client.infer("identity_bytes", {"IN": given})["OUT"].tolist() == expected


def test_lists_arrays_that_are_not_contiguous_and_bfloat16(client: Any) -> None:
    assert client.infer("identity_fp64", {"IN": [1.5, 2.5]})["OUT"].tolist() == [1.5, 2.5]
    strided = np.arange(10, dtype=np.float32)[::2]
    assert client.infer("identity_fp32", {"IN": strided})["OUT"].tolist() == strided.tolist()
    halves = np.array([1.5, -2], ml_dtypes.bfloat16)
    assert client.infer("identity_bf16", {"IN": halves})["OUT"].astype(float).tolist() == [1.5, -2]


def test_what_else_a_response_says(client: Any) -> None:
    answer = client.infer("identity_fp32", {"IN": np.float32([1])}, outputs=["OUT"], version="1", id="request 7")
    assert (answer.id, answer.model_name, answer.model_version) == ("request 7", "identity_fp32", "1")
    assert answer == {"OUT": np.float32([1])}
    assert client.infer("versions", {"X": np.ones((1, 4), np.float32)}).model_version != ""


def test_parameters_and_priority_reach_the_server(client: Any) -> None:
    answer = client.infer(
        "identity_fp32",
        {"IN": np.float32([1])},
        priority=1,
        deadline_ms=60_000,
        parameters={"sequence_id": 0, "mine": "text", "flag": True, "number": 1.5},
        headers={"X-Agent-Id": "a", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )
    assert answer["OUT"].tolist() == [1]


def test_metadata(client: Any) -> None:
    found = client.metadata("raises")
    assert (found.name, found.versions) == ("raises", ("1",))
    assert [(each.name, each.datatype, each.shape) for each in found.inputs] == [("X", "FP32", (-1, 4))]
    assert found.outputs[0].dtype == np.float32
    with pytest.raises(NotFound, match="unknown model: 'nothing'"):
        client.metadata("nothing")


def test_readiness(client: Any) -> None:
    assert client.is_ready()
    assert client.is_ready("raises")
    assert not client.is_ready("raises", "9")
    client.wait_ready(60)
    client.wait_ready(60, "raises")
    with pytest.raises(Unavailable, match=r"model 'raises' of .* is not ready after 0.05 s: "):
        client.wait_ready(0.05, "raises", "9")


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "words"),
    [
        ("nothing", {"IN": [1.0]}, NotFound, "Request for unknown model: 'nothing' is not found"),
        ("identity_fp32", {"IN": [1.0]}, InvalidArgument, "FP64"),
        ("identity_fp32", {"WRONG": np.float32([1])}, InvalidArgument, "WRONG"),
        ("raises", {"X": -np.ones((1, 4), np.float32)}, Internal, "X is negative"),
        ("repeat", {"IN": np.int32([1])}, Unsupported, "decoupled"),
    ],
)
def test_errors_have_the_servers_text_its_status_and_the_id(
    client: Any, model: str, inputs: Any, kind: type[IsochroneError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        client.infer(model, inputs, id="e1")
    assert words in str(caught.value)
    assert caught.value.request_id == "e1"
    assert caught.value.status.startswith(("HTTP 4", "HTTP 5", "gRPC "))


def test_what_no_protocol_can_carry_is_refused_before_it_is_sent(client: Any) -> None:
    with pytest.raises(InvalidArgument, match="input 'IN': numpy type complex64 has no datatype"):
        client.infer("identity_fp32", {"IN": np.zeros(1, np.complex64)})
    with pytest.raises(InvalidArgument, match="input 'IN': BYTES element 0 is 3 of type int"):
        client.infer("identity_bytes", {"IN": np.array([3], object)})
    with pytest.raises(InvalidArgument, match="deadline_ms: expected milliseconds above 0, given 0"):
        client.infer("identity_fp32", {"IN": np.float32([1])}, deadline_ms=0)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"a": object()}, "parameters['a']: expected a name and a bool, an int, a float or a str, given <object"),
        ({"a": [1]}, "parameters['a']: expected a name and a bool, an int, a float or a str, given [1]"),
        ({"a": None}, "given None"),
        ({3: "x"}, "parameters[3]: expected a name and a bool"),
        ({"a": 1 << 64}, "parameters['a']: expected an int of 64 bits, given 18446744073709551616"),
    ],
)
def test_parameters_that_only_one_protocol_could_carry_are_refused_by_both(
    client: Any, parameters: Any, words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        client.infer("identity_fp32", {"IN": np.float32([1])}, parameters=parameters)
    assert words in str(caught.value)


def test_parameters_may_be_numbers_of_numpy(client: Any) -> None:
    parameters = {"a": np.int64(1), "b": np.float32(0.5), "c": np.bool_(True), "d": 1 << 63}
    assert list(client.infer("identity_fp32", {"IN": np.float32([1])}, parameters=parameters)) == ["OUT"]


def test_a_deadline_ends_the_call(client: Any) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        client.infer("slow", {"MILLISECONDS": np.int32([[150]])}, deadline_ms=20)
    assert str(caught.value)
    assert client.infer("slow", {"MILLISECONDS": np.int32([[1]])})["SLEPT"].tolist() == [[1]]


def test_streams(fleet: Fleet, open_client: Any, place: Any) -> None:
    client = open_client(f"grpc://{place.grpc_url}")
    responses = list(client.stream("repeat", {"IN": np.int32([4, 5, 6])}, id="s"))
    assert [int(each["OUT"][0]) for each in responses] == [4, 5, 6]
    assert {each.id for each in responses} == {"s"}
    assert list(client.stream("repeat", {"IN": np.zeros(0, np.int32)})) == []
    with pytest.raises(Internal, match="element 1 is negative") as caught:
        list(client.stream("repeat", {"IN": np.int32([4, -5])}, id="s2"))
    assert (caught.value.request_id, caught.value.status) == ("s2", "gRPC stream")
    with pytest.raises(NotFound, match="unknown model"):
        list(client.stream("nothing", {"IN": np.int32([4])}))


def test_streams_need_grpc(fleet: Fleet, open_client: Any) -> None:
    client = open_client(fleet.workers[0].http_url)
    with pytest.raises(Unsupported, match=r"stream: expected a client over gRPC.*grpc://127\.0\.0\.1:PORT"):
        list(client.stream("repeat", {"IN": np.int32([4])}))


def test_a_stream_ends_within_its_deadline(fleet: Fleet, open_client: Any) -> None:
    client = open_client(f"grpc://{fleet.workers[0].grpc_url}")
    with pytest.raises(DeadlineExceeded):
        list(client.stream("slow", {"MILLISECONDS": np.int32([[300]])}, deadline_ms=30))


def test_threads_share_a_client_and_its_connections(fleet: Fleet) -> None:
    for url in (fleet.gateway.http_url, f"grpc://{fleet.gateway.grpc_url}"):
        wrong: list[object] = []
        with isochrone.Client(url) as client:

            def run(number: int, client: isochrone.Client = client, wrong: list[object] = wrong) -> None:
                for step in range(20):
                    sent = np.float32([number, step])
                    answer = client.infer("identity_fp32", {"IN": sent}, id=f"{number}-{step}")
                    if answer["OUT"].tolist() != sent.tolist() or answer.id != f"{number}-{step}":
                        wrong.append(answer)

            threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []


def test_a_closed_client_says_so(fleet: Fleet, open_client: Any) -> None:
    client = open_client(fleet.workers[0].http_url)
    client.infer("identity_fp32", {"IN": np.float32([1])})
    client.close()
    with pytest.raises(Unavailable, match="the client is closed"):
        client.infer("identity_fp32", {"IN": np.float32([1])})
