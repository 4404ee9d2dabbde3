"""Bodies that clients have compressed: what a picker reads of them, and what it leaves to the worker."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from envoy_calls import EnvoyCall, RunningPicker, body_message, destination, headers_message, picker
from isochrone.errors import IsochroneError
from isochrone.gateway.picker.bodies import NOTHING_ASKED, Asked, Collected
from isochrone.gateway.picker.calls import find_call
from isochrone.wire.exchange import Head

BUFFERED = 2
_WORKERS = {"10.0.0.1:8000", "10.0.0.2:8000"}
_MIB = 1 << 20
_INFER = {"inputs": [], "parameters": {"sequence_id": 7, "timeout": 5_000_000, "priority": 2}}
#: JSON with its parameters where no picker finds them, or would have to inflate too much to.
_LARGE = b'{"id": "' + b"x" * 2 * _MIB + b'", "parameters": {"priority": 2}}'
#: Of three megabytes when decompressed.
_TENSOR = bytes(3 * _MIB)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningPicker]:
    with picker() as made:
        yield made


@pytest.fixture
def channel(running: RunningPicker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.address) as made:
        yield made


def _buffered(channel: grpc.Channel, path: str, body: bytes, headers: dict[str, str]) -> Any:
    call = EnvoyCall(channel)
    call.ask(headers_message(path, headers=headers, mode=BUFFERED))
    answer = call.ask(body_message(body, ends=True))
    call.cancel()
    return answer


def _read(path: bytes, body: bytes, **headers: bytes) -> Asked:
    pairs = tuple((name.replace("_", "-").encode(), value) for name, value in headers.items())
    call = find_call(b"POST", path, False)
    collected = Collected(call, Head(b"POST", path, pairs), 16 * _MIB)
    collected.add(body)
    return collected.read(True)


_UNREADABLE = [
    pytest.param(b"no gzip at all", "gzip", id="damaged"),
    pytest.param(gzip.compress(b"{}" * 1000)[:-9], "gzip", id="cut off"),
    pytest.param(b"anything", "br", id="an encoding that is not known"),
    pytest.param(b"anything", "gzip, gzip", id="twice"),
    pytest.param(gzip.compress(_LARGE), "gzip", id="large JSON"),
    pytest.param(b"", "gzip", id="empty"),
]


@pytest.mark.parametrize(("body", "encoding"), _UNREADABLE)
@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/models/m/generate_stream"])
def test_what_does_not_decompress_is_for_the_worker(
    channel: grpc.Channel, path: str, body: bytes, encoding: str
) -> None:
    assert destination(_buffered(channel, path, body, {"content-encoding": encoding})) in _WORKERS


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("has_length", [True, False])
def test_tensors_behind_the_json_part_may_be_large(compress: Any, has_length: bool) -> None:
    text = json.dumps(_INFER).encode()
    headers = {"content_encoding": b"gzip" if compress is gzip.compress else b"deflate"}
    if has_length:
        headers["inference_header_content_length"] = b"%d" % len(text)
    asked = _read(b"/v2/models/m/infer", compress(text + _TENSOR), **headers)
    if has_length:
        parameters = asked.parameters
        assert (parameters.sequence, parameters.timeout_ns, parameters.priority) == (b"7", 5 * 10**9, 2)
    else:
        # All of it is JSON then, which it is not.
        assert asked == NOTHING_ASKED


@pytest.mark.parametrize(
    ("length", "sequence"),
    [(b"0", b""), (b"5", b""), (b"-1", b"7"), (b"many", b"7"), (b"99999999999999", b"7"), (b"2097152", b"7")],
)
def test_lengths_that_make_no_sense_are_for_the_worker(length: bytes, sequence: bytes) -> None:
    body = gzip.compress(json.dumps(_INFER).encode())
    asked = _read(b"/v2/models/m/infer", body, content_encoding=b"gzip", inference_header_content_length=length)
    assert asked.parameters.sequence == sequence


@pytest.mark.parametrize("size", [_MIB - 100, _MIB + 100])
def test_json_is_read_up_to_a_mebibyte(size: int) -> None:
    text = json.dumps({"id": "", "parameters": {"priority": 2}}).replace('""', f'"{"x" * size}"').encode()
    asked = _read(b"/v2/models/m/infer", gzip.compress(text), content_encoding=b"gzip")
    assert asked.parameters.priority == (2 if size < _MIB else 0)


def test_a_compressed_prompt_is_read() -> None:
    body = gzip.compress(b'{"text_input": "once upon", "time_to_first_token_ms": 50}')
    asked = _read(b"/v2/models/m/generate", body, content_encoding=b"gzip")
    assert b"once upon" in asked.prompt
    assert asked.tokens is not None


@given(
    body=st.binary(max_size=300)
    | st.binary(max_size=300).map(gzip.compress)
    | st.binary(max_size=300).map(zlib.compress),
    cut=st.integers(0, 40),
    encoding=st.sampled_from([b"gzip", b"deflate", b"br", b"identity"]),
    length=st.none() | st.integers(0, 400),
    path=st.sampled_from([b"/v2/models/m/infer", b"/v2/models/m/generate"]),
)
def test_no_body_of_a_path_is_rejected(body: bytes, cut: int, encoding: bytes, length: int | None, path: bytes) -> None:
    headers = {} if length is None else {"inference_header_content_length": b"%d" % length}
    _read(path, body[: max(0, len(body) - cut)], content_encoding=encoding, **headers)


def _too_large(text: str) -> bool:
    return "max_body_bytes" not in text and "1048576 bytes" in text and "uncompressed" in text


def test_a_call_that_only_its_body_can_place_names_the_real_limit(channel: grpc.Channel) -> None:
    body = gzip.compress(b'{"model": "m", "prompt": "' + b"x" * 2 * _MIB + b'"}')
    refusal = _buffered(channel, "/v1/completions", body, {"content-encoding": "gzip"}).immediate_response
    assert refusal.status.code == 413
    assert _too_large(json.loads(refusal.body)["error"]["message"])
    with pytest.raises(IsochroneError, match="does not decompress"):
        _read(b"/v1/completions", b"no gzip at all", content_encoding=b"gzip")


def test_a_compressed_grpc_message_names_the_real_limit(channel: grpc.Channel) -> None:
    path = "/inference.GRPCInferenceService/ModelInfer"
    headers = {"content-type": "application/grpc", "grpc-encoding": "gzip"}

    def answer(raw: bytes) -> Any:
        message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[raw])
        packed = gzip.compress(message.SerializeToString())
        return _buffered(channel, path, b"\1" + len(packed).to_bytes(4, "big") + packed, headers)

    assert destination(answer(b"x" * 1000)) in _WORKERS
    refusal = answer(_TENSOR).immediate_response
    assert refusal.status.code == 413
    assert _too_large(refusal.body.decode())
