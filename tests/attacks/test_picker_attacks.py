"""The picker, which asks nobody who calls: garbage and floods end the caller's own call or connection, other calls go
on, and no call is one of a gateway's."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from test_floods import FLOODS

from envoy_calls import EnvoyCall, body_message, destination, headers_message, response_message, trailers_message
from hostile_client import ask, message, parse_answers, resident_bytes, talk
from hostile_http2 import http2
from hostile_models import write_repository
from picker_process import PickerProcess, start_picker
from server_process import StartServer

MIB = 1 << 20
PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


@pytest.fixture(scope="module")
def picker(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PickerProcess]:
    folder = tmp_path_factory.mktemp("picker")
    limit = ("--limit", f"max_body_bytes={MIB}")
    with (
        server_factory(write_repository(folder / "models")) as worker,
        start_picker([worker], folder / "picker.log", *limit) as started,
    ):
        yield started


@pytest.fixture(autouse=True)
def _unharmed(picker: PickerProcess) -> Iterator[None]:
    """An honest call that began before goes on, and another is answered."""
    before = resident_bytes(picker.pid)
    with grpc.insecure_channel(f"127.0.0.1:{picker.picker_port}") as channel:
        call = EnvoyCall(channel)
        assert destination(call.ask(headers_message("/v2/models/echo/infer")))
        yield
        assert call.ask(response_message()).WhichOneof("response") == "response_headers"
        call.end()
        assert call.status() is grpc.StatusCode.OK
        after = EnvoyCall(channel)
        assert destination(after.ask(headers_message("/v2/models/echo/infer")))
        after.end()
        assert after.status() is grpc.StatusCode.OK
    assert resident_bytes(picker.pid) - before < 96 * MIB


def test_messages_that_make_no_sense_end_their_own_call(picker: PickerProcess, tried: Counter[str]) -> None:
    begin = headers_message("/v2/models/echo/infer")
    calls = {
        "bytes that are no message": [b"\xff\xff nonsense"],
        "a length beyond the message": [b"\x12\xff\xff\xff\xff\x0f"],
        "groups": [b"\x13" * 10_000],
        "nested": [b"\x12" * 10_000],
        "an empty message": [b""],
        "a body first": [body_message(b"{}", ends=True)],
        "trailers first": [trailers_message()],
        "a response first": [response_message()],
        "headers twice": [begin, begin],
        "a body that was not asked for": [begin, body_message(b"{}", ends=True), body_message(b"{}", ends=True)],
        "an unknown mode": [headers_message("/v2/models/echo/infer", mode=99)],
        "a mode that is negative": [headers_message("/v2/models/echo/infer", mode=-1)],
    }
    with grpc.insecure_channel(f"127.0.0.1:{picker.picker_port}") as channel:
        for what, messages in calls.items():
            call = EnvoyCall(channel)
            for each in messages:
                call.send(each)
            status = call.status()
            refused = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
            assert status in refused, (what, status, call.details())
            assert len(call.details()) < 2000
            tried["picker: messages that make no sense"] += 1
        call = EnvoyCall(channel)
        call.send(b"\x12" * (3 * MIB))
        assert call.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        tried["picker: messages beyond its limit"] += 1


def test_requests_that_reach_nothing(picker: PickerProcess, tried: Counter[str]) -> None:
    """What a client of Envoy's may name: paths out of the models, and calls that would change workers."""
    paths = [
        *(
            "/v2/repository/models/echo/unload",
            "/v2/repository/models/echo/load",
            "/v2/repository/index",
            "/v2/logging",
        ),
        *("/v2/systemsharedmemory/region/r/register", "/v2/trace/setting", "/metrics", "/v1/flights", "/console/"),
        *("/v2/models/../../etc/passwd/infer", "/v2/models/%2e%2e%2fecho/infer", "/v2/models/echo%00/infer"),
        *("/v2/models/echo/versions/..%2f1/infer", "//evil.example/v2/models/echo/infer", "*", "/v2/models//infer"),
        *("/v2/models/" + "x" * 100_000 + "/infer", "http://evil.example/v2/models/echo/infer", "/\r\nx: y"),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{picker.picker_port}") as channel:
        for path in paths:
            call = EnvoyCall(channel)
            answer = call.ask(headers_message(path, ends=True))
            call.end()
            if worker := destination(answer):
                # No call that it knows: any worker may refuse it, and does.
                assert ask(int(worker.rpartition(":")[2]), "POST", path).status in (400, 404, 431), path[:200]
                tried["picker: paths that a worker refuses"] += 1
                continue
            assert 400 <= answer.immediate_response.status.code < 600, (path, answer)
            assert len(answer.immediate_response.body) < 20_000
            tried["picker: paths that it refuses"] += 1
        # The address is the picker's choice, whatever the client or the hint names.
        for headers, subset in (
            ({"x-gateway-destination-endpoint": "10.9.9.9:80"}, None),
            ({"x-gateway-destination-endpoint-subset": "10.9.9.9:80"}, None),
            ({}, "10.9.9.9:80"),
            ({}, ["10.9.9.9:80", "evil.example:80"]),
        ):
            call = EnvoyCall(channel)
            answer = call.ask(headers_message("/v2/models/echo/infer", headers=headers, subset=subset))
            assert "10.9.9.9" not in destination(answer)
            assert subset is None or answer.immediate_response.status.code == 503
            call.end()
            tried["picker: addresses that callers name → named, never chosen"] += 1


def test_no_other_service_and_no_other_protocol(picker: PickerProcess, tried: Counter[str]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{picker.picker_port}") as channel:
        for path in (
            "/inference.GRPCInferenceService/RepositoryModelUnload",
            "/inference.GRPCInferenceService/ModelInfer",
            "/inference.GRPCInferenceService/SystemSharedMemoryRegister",
            "/envoy.service.ext_proc.v3.ExternalProcessor/process",
            "/envoy.service.auth.v3.Authorization/Check",
            "/" + "x" * 5000,
        ):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path)(b"", timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, (path, refused.value)
            tried["picker: methods that it does not have"] += 1
    for target in ("/v2/repository/models/echo/unload", "/v2/models/echo/infer", "/v2", "/metrics"):
        for method in ("GET", "POST"):
            answers = parse_answers(talk(picker.picker_port, message(method, target)))
            assert all(answer.status >= 400 for answer in answers), answers
            tried["picker: HTTP/1.1 requests as to a gateway"] += 1


#: Resets are calls that clients of an Envoy give up, and padding is a body's: it takes 50,000 such frames a second.
TAKEN = ("rapid reset (CVE-2023-44487)", "resets by the server (CVE-2025-8671)", "padding alone")


def test_floods_end_their_own_connection(picker: PickerProcess, tried: Counter[str]) -> None:
    for name in FLOODS:
        with http2(picker.picker_port) as end:
            # More than two seconds' frames: the next second may begin in the middle of them.
            end.send(FLOODS[name] * (1 if name in TAKEN else 16))
            if name not in TAKEN:
                end.until_gone()
                tried["picker: HTTP/2 floods → connections closed"] += 1


def test_many_calls(picker: PickerProcess, tried: Counter[str]) -> None:
    """Calls that begin and are left: what they hold is given back."""
    with grpc.insecure_channel(f"127.0.0.1:{picker.picker_port}") as channel:
        calls = [EnvoyCall(channel) for _ in range(300)]
        for call in calls:
            call.send(headers_message("/v2/models/echo/infer"))
        for call in calls:
            call.cancel()
            assert call.status() is grpc.StatusCode.CANCELLED
    url = f"http://127.0.0.1:{picker.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.status == 200
