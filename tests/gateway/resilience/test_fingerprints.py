"""Identical requests have one fingerprint, whatever their ids; different ones have different ones."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.gateway.resilience.fingerprints import of_grpc, of_http

NAMES = st.text(max_size=300)


def http(identity: str | None, data: list[int], tail: bytes = b"", path: bytes = b"/infer") -> bytes:
    value: dict[str, object] = {"inputs": [{"name": "x", "shape": [len(data)], "datatype": "INT32", "data": data}]}
    if identity is not None:
        value = {"id": identity, **value}
    start = json.dumps(value).encode()
    return of_http(path, start + tail, len(start) if tail else -1)


def grpc(identity: str, version: str, contents: bytes) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m", model_version=version, id=identity)
    request.raw_input_contents.append(contents)
    return of_grpc(b"/ModelInfer", b"\0" * 5 + request.SerializeToString(), 5)


@given(NAMES, NAMES, st.lists(st.integers(0, 9)), st.binary(min_size=1))
def test_the_id_does_not_count(one: str, two: str, data: list[int], tail: bytes) -> None:
    assert http(one, data) == http(two, data)
    assert http(one, data, tail) == http(two, data, tail)
    assert grpc(one, "1", tail) == grpc(two, "", tail)


def test_everything_else_does() -> None:
    known = {
        http("a", [1]),
        http("a", [2]),
        http("a", [1], b"x"),
        http("a", [1], b"y"),
        http("a", [1], path=b"/generate"),
        grpc("a", "1", b"x"),
        grpc("a", "1", b"y"),
    }
    assert len(known) == 7


@given(st.binary(max_size=200), st.integers(-1, 300))
def test_no_bytes_make_it_fail(body: bytes, length: int) -> None:
    assert len(of_http(b"/infer", body, length)) == 16
    assert len(of_grpc(b"/infer", body, 0)) == 16
    assert len(of_http(b"/infer", b'{"id":' + body, length)) == 16
