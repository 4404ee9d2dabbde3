"""Load requests through a gateway: without files, and exactly as they were checked."""

from __future__ import annotations

import json

import pytest
from tritonclient.grpc import service_pb2

from isochrone.errors import IsochroneError, MalformedRequest, PermissionDenied
from isochrone.gateway.control_calls.load_requests import checked_grpc, checked_http
from isochrone.protocol.grpc.calls import frame_message


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": {"config": "{\\"backend\\": \\"python\\"}"}}'])
def test_a_load_without_files_passes(body: bytes) -> None:
    passed = checked_http(body)
    assert (json.loads(passed) if passed else None) == (json.loads(body) if body else None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"parameters": {"file:1/model.py": "eA=="}}',
        b'{"parameters": {"\\u0066ile:1/model.py": "eA=="}}',
        b'{"parameters": {"config": "{}", "file:1/model.py": "eA=="}}',
    ],
)
def test_files_are_refused(body: bytes) -> None:
    with pytest.raises(PermissionDenied, match="--allow-file-overrides"):
        checked_http(body)


def test_no_server_can_read_another_request_in_the_same_bytes() -> None:
    # Of two equal keys some parsers take the first, others the last.
    sent = checked_http(b'{"parameters": {"file:1/model.py": "eA=="}, "parameters": {}}')
    assert b"file:" not in sent


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"parameters": {"file:1/model.py": "eA=="}} x', b"[" * 100_000])
def test_what_is_no_json_is_not_passed_on(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        checked_http(body)


def load_message(**parameters: str | bytes) -> bytes:
    request = service_pb2.RepositoryModelLoadRequest(model_name="m")
    for name, value in parameters.items():
        if isinstance(value, bytes):
            request.parameters[name].bytes_param = value
        else:
            request.parameters[name].string_param = value
    return bytes(request.SerializeToString())


def test_grpc_loads() -> None:
    plain = load_message(config="{}")
    assert checked_grpc(frame_message(plain)) == frame_message(plain)
    with_file = load_message(**{"config": "{}", "file:1/model.py": b"x"})
    with pytest.raises(PermissionDenied, match="--allow-file-overrides"):
        checked_grpc(frame_message(with_file))
    with pytest.raises(IsochroneError):
        checked_grpc(frame_message(b"\xff\xff"))
