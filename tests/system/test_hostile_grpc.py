"""gRPC calls that lie: each ends with its documented status and a message, on its own stream alone."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from hostile_client import Victim
from hostile_http2 import DATA, END_HEADERS, END_STREAM, HEADERS, frame, grpc_block, grpc_message, http2
from hostile_models import write_repository
from server_process import StartServer

INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 5, 8, 12
LIMIT = 4 << 20


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    with server_factory(repository, "--max-body-bytes", str(LIMIT)) as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    with http2(victim.grpc) as end:
        answer = end.call(1, "ModelInfer", request().SerializeToString())
        assert (answer.grpc_status, answer.reset) == (0, None)
    victim.check()


def request(model: str = "echo", shape: tuple[int, ...] = (2,), datatype: str = "FP32", *raw: bytes) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    message.raw_input_contents.extend(raw or (b"\0" * 8,))
    return message


def typed(**contents: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name="echo")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[2])
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return message


def both() -> Any:
    message = typed(fp32_contents=[1, 2])
    message.raw_input_contents.append(b"\0" * 8)
    return message


def named(**fields: Any) -> Any:
    message = request()
    for key, value in fields.items():
        setattr(message, key, value)
    return message


def parameter(key: str, **value: Any) -> Any:
    message = request()
    for name, given in value.items():
        setattr(message.parameters[key], name, given)
    return message


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        (request("nope"), NOT_FOUND, "unknown model: 'nope' is not found"),
        (request("../echo"), NOT_FOUND, "is not found"),
        (named(model_version="7"), NOT_FOUND, "version 7 is not found"),
        (named(model_version="x"), INVALID_ARGUMENT, "expected a positive integer, given 'x'"),
        (request("echo", (-2,)), INVALID_ARGUMENT, "has dimension -2"),
        (request("echo", (2**62,)), INVALID_ARGUMENT, "holds more than"),
        (request("echo", (2**32, 2**32)), INVALID_ARGUMENT, "holds more than"),
        (request("echo", (0, 2**60, 2**60), "FP32", b""), INVALID_ARGUMENT, "holds more than"),
        (request("echo", (1,) * 100), INVALID_ARGUMENT, "100 dimensions"),
        (request("echo", (3,)), INVALID_ARGUMENT, "mismatch for input 'x' for model 'echo'. Expected 12, got 8"),
        (request("echo", (2,), "FP8"), INVALID_ARGUMENT, "unknown datatype 'FP8'"),
        (request("echo", (2,), "INT32"), INVALID_ARGUMENT, "expects 'FP32'"),
        (request("echo", (2,), "FP32", b"\0" * 8, b"\0" * 8), INVALID_ARGUMENT, "raw_input_contents: expected 1"),
        (request("text", (1,), "BYTES", struct.pack("<I", 99) + b"a"), INVALID_ARGUMENT, "truncated"),
        (request("text", (2**39,), "BYTES", b"\0\0\0\0"), INVALID_ARGUMENT, "BYTES elements"),
        (typed(), INVALID_ARGUMENT, "expected raw_input_contents for input 'x'"),
        (typed(fp32_contents=[1]), INVALID_ARGUMENT, "expected 2 elements in fp32_contents"),
        (typed(int_contents=[1, 2]), INVALID_ARGUMENT, "FP32 is carried by fp32_contents, given int_contents"),
        (both(), INVALID_ARGUMENT, "must not be specified when using raw_input_contents"),
        (parameter("priority", int64_param=-1), INVALID_ARGUMENT, "parameter 'priority'"),
        (parameter("timeout", string_param="soon"), INVALID_ARGUMENT, "parameter 'timeout'"),
        (parameter("sequence_id", double_param=1.5), INVALID_ARGUMENT, "parameter 'sequence_id'"),
    ],
)
def test_a_message_that_lies_is_refused(victim: Victim, message: Any, status: int, reason: str) -> None:
    with http2(victim.grpc) as end:
        answer = end.call(1, "ModelInfer", message.SerializeToString())
        assert (answer.grpc_status, reason in answer.grpc_text) == (status, True), answer
        assert end.call(3, "ModelInfer", request().SerializeToString()).grpc_status == 0


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff\xff\xff", "failed to parse"),
        (b"\x0a\xff\xff\xff\xff\x0f", "cut short"),
        (b"\x0b", "wire type 3"),
        (b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "failed to parse"),
        (b"\x3a\x05ab", "cut short"),
        (b"\x0a\x02\xff\xfe" + request().SerializeToString()[6:], "failed to parse"),
        (b"\x80" * 100, "failed to parse"),
    ],
)
def test_bytes_that_are_no_message_are_refused(victim: Victim, payload: bytes, reason: str) -> None:
    with http2(victim.grpc) as end:
        answer = end.call(1, "ModelInfer", payload)
        assert (answer.grpc_status, reason in answer.grpc_text) == (INVALID_ARGUMENT, True), answer


def test_a_request_cut_at_every_byte_is_refused_or_means_less(victim: Victim) -> None:
    whole = request().SerializeToString()
    with http2(victim.grpc) as end:
        for cut in range(len(whole)):
            answer = end.call(2 * cut + 1, "ModelInfer", whole[:cut])
            assert answer.grpc_status in (INVALID_ARGUMENT, NOT_FOUND), (cut, answer)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", INVALID_ARGUMENT, "a prefix of 5 bytes, given 0"),
        (b"\0\0", INVALID_ARGUMENT, "a prefix of 5 bytes, given 2"),
        (b"\0\0\0\0\x09abc", INVALID_ARGUMENT, "announces 9 bytes, given 3"),
        (b"\0\xff\xff\xff\xff", INVALID_ARGUMENT, "announces 4294967295 bytes"),
        (grpc_message(b"") + grpc_message(b""), INVALID_ARGUMENT, "announces 0 bytes, given 5"),
        (grpc_message(b"abc", 7), INVALID_ARGUMENT, "compressed flag: expected 0 or 1, given 7"),
        (grpc_message(b"abc", 1), INVALID_ARGUMENT, "grpc-encoding names no compression"),
    ],
)
def test_wrong_framing_is_refused(victim: Victim, body: bytes, status: int, reason: str) -> None:
    with http2(victim.grpc) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, grpc_block("ModelInfer")), frame(DATA, END_STREAM, 1, body))
        answer = end.response(1)
        assert (answer.grpc_status, reason in answer.grpc_text) == (status, True), answer


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata"])
def test_a_compressed_bomb_is_refused(victim: Victim, encoding: str, method: str) -> None:
    zeros = b"\0" * (64 << 20)
    bomb = gzip.compress(zeros, 1) if encoding == "gzip" else zlib.compress(zeros, 1)
    with http2(victim.grpc) as end:
        answer = end.call(1, method, bomb, ("grpc-encoding", encoding), flag=1)
        assert answer.grpc_status == RESOURCE_EXHAUSTED
        assert "larger than max_body_bytes" in answer.grpc_text


@pytest.mark.parametrize(
    ("method", "fields", "status", "reason"),
    [
        ("NoSuchMethod", (), UNIMPLEMENTED, "unknown method"),
        ("ModelInfer", (("grpc-timeout", "soon"),), INVALID_ARGUMENT, "grpc-timeout"),
        ("ModelInfer", (("grpc-timeout", "999999999S"),), INVALID_ARGUMENT, "grpc-timeout"),
        ("ModelInfer", (("grpc-timeout", ""),), INVALID_ARGUMENT, "grpc-timeout"),
        ("CudaSharedMemoryRegister", (), INVALID_ARGUMENT, "CUDA shared memory"),
        ("SystemSharedMemoryRegister", (), UNIMPLEMENTED, "--allow-shared-memory"),
    ],
)
def test_calls_that_cannot_be(
    victim: Victim, method: str, fields: tuple[tuple[str, str], ...], status: int, reason: str
) -> None:
    with http2(victim.grpc) as end:
        answer = end.call(1, method, b"", *fields)
        assert (answer.grpc_status, reason in answer.grpc_text) == (status, True), answer


def test_an_unknown_encoding_is_unimplemented(victim: Victim) -> None:
    with http2(victim.grpc) as end:
        answer = end.call(1, "ModelInfer", b"abc", ("grpc-encoding", "br"), flag=1)
        assert answer.grpc_status == UNIMPLEMENTED


def test_an_oversized_message_is_refused(victim: Victim) -> None:
    """As gRPC, so that a stock client sees a status and not a broken connection."""
    with http2(victim.grpc) as end:
        answer = end.call(1, "ModelInfer", b"\0" * (LIMIT + 1_000_000))
        assert answer.grpc_status == RESOURCE_EXHAUSTED
        assert "max_body_bytes" in answer.grpc_text


def stream_answers(body: bytes) -> list[Any]:
    answers = []
    while body:
        length = int.from_bytes(body[1:5], "big")
        answers.append(service_pb2.ModelStreamInferResponse.FromString(body[5 : 5 + length]))
        body = body[5 + length :]
    return answers


def test_a_bad_request_of_a_stream_fails_alone(victim: Victim) -> None:
    bad = request("echo", (-2,))
    bad.id = "bad"
    messages = [request(), bad, request("nope"), request()]
    with http2(victim.grpc) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, grpc_block("ModelStreamInfer")))
        end.send(*(frame(DATA, 0, 1, grpc_message(each.SerializeToString())) for each in messages))
        end.send(frame(DATA, 0, 1, grpc_message(b"\xff\xff\xff")), frame(DATA, END_STREAM, 1))
        answer = end.response(1)
    assert answer.grpc_status == 0
    first, second, third, fourth, fifth = stream_answers(answer.body)
    assert first.error_message == fourth.error_message == ""
    assert "dimension -2" in second.error_message
    assert "'nope' is not found" in third.error_message
    assert "failed to parse" in fifth.error_message


def test_a_stream_message_of_absurd_length_ends_the_stream(victim: Victim) -> None:
    with http2(victim.grpc) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, grpc_block("ModelStreamInfer")))
        end.send(frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"))
        answer = end.response(1)
        assert answer.grpc_status == RESOURCE_EXHAUSTED
        assert end.call(3, "ModelInfer", request().SerializeToString()).grpc_status == 0


def test_a_stream_that_ends_inside_a_message_is_over(victim: Victim) -> None:
    with http2(victim.grpc) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, grpc_block("ModelStreamInfer")))
        end.send(frame(DATA, END_STREAM, 1, grpc_message(request().SerializeToString())[:-3]))
        assert end.response(1).grpc_status == INVALID_ARGUMENT
