"""Inference requests over REST that lie about their tensors: each refused with its code and a message that names it."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from hostile_client import ECHO_BYTES, ECHO_REQUEST, Victim, ask, infer
from hostile_models import write_repository
from isochrone.protocol.compression.codec import ACCEPTED
from server_process import StartServer

LIMIT = 4 << 20
EIGHT = b"\0" * 8


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    arguments = ("--max-body-bytes", str(LIMIT), "--allow-shared-memory", "--model-control-mode", "explicit")
    with server_factory(repository, *arguments, "--load-model", "*") as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    victim.check()


def one(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", **changes}]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("100", "Inference-Header-Content-Length is 100, but the body has 82 bytes"),
        ("-1", "expected a non-negative integer, given b'-1'"),
        ("9" * 30, "expected a non-negative integer"),
        ("ten", "expected a non-negative integer, given b'ten'"),
        ("1", "failed to parse the request JSON"),
        ("0", "for input 'x' for model 'echo'. Expected 80, got 82"),
    ],
)
def test_a_wrong_header_length_is_400(victim: Victim, value: str, reason: str) -> None:
    headers = {"Inference-Header-Content-Length": value}
    answer = ask(victim.http, "POST", "/v2/models/echo/infer", ECHO_BYTES, headers)
    assert (answer.status, reason in answer.error) == (400, True), answer


@pytest.mark.parametrize(
    ("changes", "binary", "reason"),
    [
        ({"parameters": {"binary_data_size": 4}}, EIGHT, "for input 'x' for model 'echo'. Expected 8, got 4"),
        (
            {"parameters": {"binary_data_size": 80}},
            EIGHT,
            "for input 'x' for model 'echo'. Expected 8, got 80",
        ),
        ({"parameters": {"binary_data_size": 8}}, b"1234", "announces 8 bytes, given 4"),
        ({"parameters": {"binary_data_size": 8}}, EIGHT + b"more", "4 bytes follow the last input"),
        ({"parameters": {"binary_data_size": -8}}, EIGHT, "expected a non-negative integer, given -8"),
        ({"parameters": {"binary_data_size": "8"}}, EIGHT, "expected a non-negative integer, given '8'"),
        ({"parameters": {"binary_data_size": True}}, EIGHT, "expected a non-negative integer, given True"),
        ({"parameters": {"binary_data_size": 2**64}}, EIGHT, "expected a non-negative integer"),
        ({"data": [1, 2], "parameters": {"binary_data_size": 8}}, EIGHT, "But set 'data' 'binary_data_size'"),
        ({}, None, "neither 'data', 'binary_data_size' nor a shared memory region"),
        ({"shape": [-2], "data": [1, 2]}, None, "input 'x': shape [-2] has dimension -2"),
        ({"shape": [2**62], "data": [1, 2]}, None, "holds more than"),
        ({"shape": [2**32, 2**32], "data": [1, 2]}, None, "holds more than"),
        ({"shape": [0, 2**60, 2**60], "data": []}, None, "holds more than"),
        ({"shape": [10**400], "data": [1]}, None, "an integer of 1329 bits"),
        ({"shape": [2.5], "data": [1, 2]}, None, "Expected `int`, got `float`"),
        ({"shape": ["2"], "data": [1, 2]}, None, "Expected `int`, got `str`"),
        ({"shape": [1] * 1000, "data": [1]}, None, "1000 dimensions, at most 32"),
        ({"shape": [3], "data": [1, 2]}, None, "expected 3 elements for shape [3], given 2"),
        ({"data": [[1], [2, 3]]}, None, "ragged"),
        ({"data": ["1", "2"]}, None, "element 0 is '1', expected a number"),
        ({"data": {"0": 1}}, None, "expected a list as data"),
        ({"datatype": "FP8", "data": [1, 2]}, None, "unknown datatype 'FP8', expected one of BOOL"),
        ({"datatype": "", "data": [1, 2]}, None, "unknown datatype ''"),
        ({"datatype": 7, "data": [1, 2]}, None, "Expected `str`, got `int`"),
        ({"datatype": "INT32", "data": [1, 2]}, None, "data-type is 'INT32', but model 'echo' expects 'FP32'"),
        ({"data": [1e39, 0]}, None, "element 0 is 1e+39, outside FP32's range"),
        ({"data": [10**400, 0]}, None, "an integer of 1329 bits, outside FP32's range"),
        ({"name": "z", "data": [1, 2]}, None, "unexpected inference input 'z'"),
    ],
)
def test_a_tensor_that_cannot_be_is_400(
    victim: Victim, changes: dict[str, Any], binary: bytes | None, reason: str
) -> None:
    answer = infer(victim.http, "echo", one(**changes), binary)
    assert (answer.status, reason in answer.error) == (400, True), answer


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"inputs":' + NESTED + b"}", "Expected `object`, got `array`"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + NESTED + b"}]}", "recursion"),
        (b'{"inputs":[],"parameters":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, "recursion"),
        (b'{"unheard_of":' + NESTED + b"}", "recursion"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[' + b"9" * 100_000 + b"]}]}", "out of range"),
        (b'{"inputs":[],"parameters":{"priority":' + b"9" * 5000 + b"}}", "out of range"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[nan]}]}', "malformed"),
        (b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[NaN,1e400]}]}', "out of range"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1e400]}]}', "out of range"),
        (b'{"inputs":[{"name":"\xff\xfe","shape":[1],"datatype":"FP32","data":[1]}]}', "utf-8"),
        (b'{"inputs":[{"name":"\\ud800","shape":[1],"datatype":"FP32","data":[1]}]}', "surrogate"),
        (b'{"inputs":[', "truncated"),
        (b"", "truncated"),
        (b"null", "Expected `object`, got `null`"),
        (b"[]", "Expected `object`, got `array`"),
        (ECHO_BYTES + b"x", "trailing characters"),
        (b"\xef\xbb\xbf" + ECHO_BYTES, "malformed"),
        (ECHO_BYTES.decode().encode("utf-16"), "malformed"),
    ],
)
def test_json_that_is_none_or_goes_too_deep_is_400(victim: Victim, body: bytes, reason: str) -> None:
    answer = infer(victim.http, "echo", body)
    assert answer.status == 400
    assert answer.error.startswith("failed to parse the request JSON: ")
    assert reason in answer.error


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/echo/load",
        "/v2/repository/models/echo/unload",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/echo/generate",
        "/v2/models/echo/generate_stream",
        "/v2/systemsharedmemory/region/a/register",
    ],
)
def test_deep_json_is_400_on_every_path(victim: Victim, path: str) -> None:
    answer = ask(victim.http, "POST", path, b'{"a":' * 100_000)
    assert answer.status == 400
    assert "recursion" in answer.error


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parameters": {"timeout": -1}}, "parameter 'timeout': expected 0 to 2^63-1, given -1"),
        ({"parameters": {"priority": "a" * 100_000}}, "(100000 long)"),
        ({"parameters": {"priority": {"a": [1] * 20_000}}}, "an object of 1 keys"),
        ({"parameters": {"sequence_id": 2**64}}, "parameter 'sequence_id': expected 0 to 2^64-1"),
        ({"parameters": {"binary_data_output": "x"}}, "expected bool, given 'x'"),
        ({"parameters": []}, "Expected `object`, got `array`"),
        ({"inputs": {}}, "Expected `array`, got `object`"),
        ({"inputs": []}, "missing required input(s) ['x']"),
        ({"inputs": ECHO_REQUEST["inputs"] * 10_000}, "names an input twice"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "names an output twice"),
        ({"outputs": [{"name": "z"}]}, "unexpected inference output 'z'"),
        ({"outputs": [{"name": "n" * 1_000_000}]}, "characters)"),
        ({"outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "expected a non-negative integer"),
        ({"id": 5}, "Expected `str`, got `int`"),
    ],
)
def test_bad_parameters_are_400_and_quoted_briefly(victim: Victim, changes: dict[str, Any], reason: str) -> None:
    answer = infer(victim.http, "echo", {**ECHO_REQUEST, **changes})
    assert (answer.status, reason in answer.error) == (400, True), answer.body[:300]
    assert len(answer.body) < 6000


@pytest.mark.parametrize("region", ["none", [1], {"a": 1}, "../../etc/passwd"])
def test_a_region_nobody_registered_is_404(victim: Victim, region: object) -> None:
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": 8}
    wanted = {**ECHO_REQUEST, "outputs": [{"name": "y", "parameters": parameters}]}
    for request in (one(parameters=parameters), wanted):
        answer = infer(victim.http, "echo", request)
        assert answer.status == 404
        assert "Unable to find shared memory region" in answer.error


def words(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize(
    ("shape", "binary", "reason"),
    [
        ([1], words(b"\xff\xfe"), "is not valid UTF-8, ask for binary_data"),
        ([1], struct.pack("<I", 200) + b"ab", "element 0 is truncated: expected 200 bytes, given 2"),
        ([2], words(b"ab"), "expected 2 BYTES elements"),
        ([1], words(b"a", b"b"), "further bytes after"),
        ([2**39], words(b"ab"), "expected 549755813888 BYTES elements"),
        ([1], b"\1", "BYTES elements, which take 4 bytes or more, given 1"),
    ],
)
def test_bytes_that_do_not_add_up_are_400(victim: Victim, shape: list[int], binary: bytes, reason: str) -> None:
    tensor = {"name": "x", "shape": shape, "datatype": "BYTES", "parameters": {"binary_data_size": len(binary)}}
    answer = infer(victim.http, "text", {"inputs": [tensor]}, binary)
    assert (answer.status, reason in answer.error) == (400, True), answer


def test_a_value_its_type_cannot_hold_is_400(victim: Victim) -> None:
    answer = infer(victim.http, "int8", {"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [300]}]})
    assert answer.status == 400
    assert "element 0 is 300, outside INT8's range -128 to 127" in answer.error


@pytest.mark.parametrize("shape", [[0, 4], [9, 4], [4], [2, 2, 2], [1, 5], []])
def test_a_batch_that_does_not_fit_is_400(victim: Victim, shape: list[int]) -> None:
    count = 1
    for dimension in shape:
        count *= dimension
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": [0] * count}
    assert infer(victim.http, "batched", {"inputs": [tensor]}).status == 400


ZEROS = b"\0" * (64 << 20)
BOMBS = {
    "gzip": gzip.compress(ZEROS, 1),
    "deflate": zlib.compress(ZEROS, 1),
    "deflate without wrapper": zlib.compress(ZEROS, 1)[2:-4],
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/models/echo/generate", "/v2/repository/models/x/load"])
def test_a_compressed_bomb_is_413(victim: Victim, kind: str, path: str) -> None:
    encoding = kind.partition(" ")[0]
    answer = ask(victim.http, "POST", path, BOMBS[kind], {"Content-Encoding": encoding})
    assert answer.status == 413
    assert answer.error == f"the {encoding} body is larger than max_body_bytes ({LIMIT}) when decompressed"


@pytest.mark.parametrize(
    ("encoding", "body", "status", "reason"),
    [
        ("gzip", b"nonsense", 400, "the gzip body does not decompress"),
        ("deflate", b"nonsense", 400, "the deflate body does not decompress"),
        ("gzip", gzip.compress(ECHO_BYTES, mtime=0)[:-9], 400, "the gzip body ends early"),
        ("gzip", gzip.compress(ECHO_BYTES, mtime=0) + b"more", 400, "4 bytes follow the gzip body"),
        ("br", ECHO_BYTES, 501, f"unsupported content-encoding 'br'; send one of {ACCEPTED.decode()}"),
        ("gzip, gzip", gzip.compress(gzip.compress(ECHO_BYTES, mtime=0), mtime=0), 501, "unsupported content-encoding"),
    ],
)
def test_a_body_that_does_not_decompress(victim: Victim, encoding: str, body: bytes, status: int, reason: str) -> None:
    answer = ask(victim.http, "POST", "/v2/models/echo/infer", body, {"Content-Encoding": encoding})
    assert answer.status == status
    assert reason in answer.error
    if status == 501:
        assert answer.headers["accept-encoding"] == ACCEPTED.decode()


@pytest.mark.parametrize("value", ["nan", "-1", "0", "1e999", "soon", ""])
def test_a_bad_deadline_header_is_400(victim: Victim, value: str) -> None:
    headers = {"x-request-timeout-ms": value}
    answer = ask(victim.http, "POST", "/v2/models/echo/infer", ECHO_BYTES, headers)
    assert answer.status == 400
    assert "x-request-timeout-ms: expected a positive number" in answer.error
