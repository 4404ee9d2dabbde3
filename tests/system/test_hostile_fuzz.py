"""Mutations of valid requests, the same ones on every run: never a crash, a hang, or a fault called our own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from hostile_client import ECHO_BYTES, Victim, message, parse_answers, talk
from hostile_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    frame,
    grpc_block,
    grpc_message,
    http2,
    rest_block,
    settings,
)
from hostile_models import write_repository
from server_process import StartServer

#: 501 and 503 have documented causes (an encoding we do not speak, a model that is not ready).
DOCUMENTED = {501, 503}


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    arguments = ("--head-timeout", "10", "--body-timeout", "10", "--idle-timeout", "20", "--max-body-bytes", "1000000")
    with server_factory(repository, *arguments) as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    victim.check()
    text = victim.server.log_text()
    assert "Traceback" not in text, text[-3000:]


#: (kind, where as a share of the length, bytes): what is done to a message.
Mutation = tuple[str, float, bytes]
mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "repeat", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, changes: list[Mutation]) -> bytes:
    for kind, share, piece in changes:
        at = int(share * len(data))
        if kind == "flip":
            data = data[:at] + piece + data[at + len(piece) :]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + len(piece) :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + 16] * len(piece) + data[at:]
        else:
            data = data[: at + 1]
    return data


BINARY = b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}'
MESSAGES = [
    message("POST", "/v2/models/echo/infer", ECHO_BYTES),
    message(
        "POST", "/v2/models/echo/infer", BINARY + b"12345678", {"Inference-Header-Content-Length": str(len(BINARY))}
    ),
    message("POST", "/v2/models/echo/generate", b'{"x": [1, 2]}'),
    message("GET", "/v2/models/echo/versions/1/config"),
    b"POST /v2/repository/index HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'10\r\n{"ready": false}\r\n0\r\n\r\n',
]


@examples(max_examples=250)
@given(st.sampled_from(MESSAGES), mutations)
def test_mutated_http1_requests(victim: Victim, sent: bytes, changes: list[Mutation]) -> None:
    mutated = mutate(sent, changes)
    received = talk(victim.http, mutated, half_close=True)
    if received.startswith(b"HTTP/1.1"):
        for answer in parse_answers(received, to_head=mutated.lstrip(b"\r\n").startswith(b"HEAD ")):
            assert answer.status < 500 or answer.status in DOCUMENTED, answer
            if answer.status >= 400 and answer.body:
                assert answer.error


@examples(max_examples=250)
@given(st.sampled_from([ECHO_BYTES, BINARY]), mutations)
def test_mutated_bodies_are_always_answered(victim: Victim, body: bytes, changes: list[Mutation]) -> None:
    """The head is right, so an answer has to come: 200, or a 4xx that says why."""
    headers = {"Inference-Header-Content-Length": str(len(BINARY))} if body is BINARY else {}
    sent = message("POST", "/v2/models/echo/infer", mutate(body, changes), headers)
    (answer,) = parse_answers(talk(victim.http, sent))
    assert answer.status < 500, answer
    if answer.status != 200:
        assert answer.error


def valid_call() -> bytes:
    request = service_pb2.ModelInferRequest(model_name="echo", id="one")
    request.inputs.add(name="x", datatype="FP32", shape=[2])
    request.outputs.add(name="y")
    request.parameters["priority"].int64_param = 1
    request.raw_input_contents.append(b"12345678")
    return bytes(request.SerializeToString())


CALL = valid_call()


@examples(max_examples=250)
@given(mutations, st.sampled_from(["ModelInfer", "ModelStreamInfer", "RepositoryIndex", "ModelConfig"]))
def test_mutated_grpc_messages_are_always_answered(victim: Victim, changes: list[Mutation], method: str) -> None:
    payload = mutate(CALL, changes)
    with http2(victim.grpc) as end:
        answer = end.call(1, method, payload)
        # INTERNAL would be a fault of ours.
        assert answer.grpc_status in (0, 3, 5, 8, 12, 14), answer


CONNECTION = (
    PREFACE
    + settings({4: 65_535})
    + frame(HEADERS, END_HEADERS, 1, grpc_block("ModelInfer"))
    + frame(DATA, END_STREAM, 1, grpc_message(CALL))
    + frame(HEADERS, END_HEADERS | END_STREAM, 3, rest_block("GET", "/v2/models/echo"))
)


@examples(max_examples=250)
@given(mutations)
def test_mutated_http2_connections_end_in_order(victim: Victim, changes: list[Mutation]) -> None:
    with http2(victim.grpc, mutate(CONNECTION, changes)) as end:
        end.socket.shutdown(1)
        # The server closes by itself, and every byte it sent is a whole frame or an HTTP/1.1 answer.
        for received in end.frames():
            if received.kind > 9:
                break
