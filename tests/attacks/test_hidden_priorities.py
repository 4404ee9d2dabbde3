"""A role's limits against requests that a gateway and a worker could read differently.

In a fleet the gateway alone checks callers, and the worker behind it obeys the message. Whatever spelling the worker
understands, the gateway has to judge.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from guarded_servers import CALLERS, ask, inference, write_access
from tritonclient.grpc import service_pb2

from gateway_process import StartGateway
from isochrone.varint import encode_varint
from sample_models import write_models
from server_process import StartServer

PATH = "/v2/models/identity_fp32/infer"
ROW = "a priority that the gateway could overlook"


@pytest.fixture(scope="module")
def edge(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[tuple[int, dict[str, str]]]:
    """A gateway with an access file before a worker without one, and the credential of ``limited`` (priority 2)."""
    folder = tmp_path_factory.mktemp("edge")
    tokens = write_access(folder / "access.yaml")
    assert "limited" in CALLERS
    with (
        server_factory(write_models(folder / "models", "identity_fp32")) as worker,
        gateway_factory([worker], "--access", str(folder / "access.yaml")) as gateway,
    ):
        yield gateway.http_port, {"authorization": f"Bearer {tokens['limited']}"}


def _around(text: str, size: int) -> bytes:
    """``text`` as a member in the middle of an infer request, ``size`` bytes from both of its ends."""
    filler = json.dumps("y" * size)
    tensor = '{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}'
    return f'{{"before": {filler}, {text}, "inputs": [{tensor}], "after": {filler}}}'.encode()


HIDDEN = {
    "plain": _around('"parameters": {"priority": 1}', 0),
    "escaped": _around('"parameters": {"prior\\u0069ty": 1}', 0),
    "escaped twice": _around('"param\\u0065ters": {"\\u0070riority": 1}', 0),
    "in the middle": _around('"parameters": {"priority": 1}', 9000),
    "escaped in the middle": _around('"parameters": {"prior\\u0069ty": 1}', 9000),
    "in the middle of much": _around('"parameters": {"priority": 1}', 200_000),
    "in the middle of more": _around('"parameters": {"priority": 1}', 700_000),
    "the second of two": _around('"parameters": {"priority": 3}, "parameters": {"priority": 1}', 0),
    "beside NaN": _around('"parameters": {"prior\\u0069ty": 1}, "x": [NaN]', 0),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_in_json(edge: tuple[int, dict[str, str]], tried: Counter[str], name: str) -> None:
    port, mine = edge
    body = HIDDEN[name]
    # The worker would take it, if the gateway let it pass: the limit alone is why it is refused.
    harmless = body.replace(b'": 1}', b'": 2}')
    for encode, more in ((bytes, {}), (gzip.compress, {"content-encoding": "gzip"})):
        allowed = 400 if name == "in the middle of more" else 200
        assert ask(port, "POST", PATH, {**mine, **more}, encode(harmless))[0] == allowed
        for _ in range(3):  # remembered heads and bodies, too
            status, _, answer = ask(port, "POST", PATH, {**mine, **more}, encode(body))
            assert status in (400, 403), answer
            assert b"priority" in answer
            tried[ROW] += 1


def test_by_headers_that_the_worker_shall_not_see(edge: tuple[int, dict[str, str]], tried: Counter[str]) -> None:
    """Connection names fields that end at the gateway: those by which it read the body must go on."""
    port, mine = edge
    body = json.dumps(inference(priority=1)).encode()
    for length in (0, 2, 10):
        more = {"inference-header-content-length": str(length), "connection": "inference-header-content-length"}
        assert ask(port, "POST", PATH, {**mine, **more}, body)[0] in (400, 403)
        tried[ROW] += 1
    packed = gzip.compress(json.dumps(inference()).encode())
    more = {"content-encoding": "gzip", "connection": "Content-Encoding"}
    assert ask(port, "POST", PATH, {**mine, **more}, packed)[0] == 200, "it was read as compressed, and is passed on so"


def test_in_generate_requests(edge: tuple[int, dict[str, str]], tried: Counter[str]) -> None:
    port, mine = edge
    filler = "y" * 9000
    for verb in ("generate", "generate_stream"):
        for text in (
            '{"IN": [1.0], "priority": 1}',
            '{"IN": [1.0], "prior\\u0069ty": 1}',
            '{"IN": [1.0], "parameters": {"prior\\u0069ty": 1}}',
            f'{{"a": "{filler}", "priority": 1, "IN": [1.0], "b": "{filler}"}}',
        ):
            assert ask(port, "POST", PATH.replace("infer", verb), mine, text.encode())[0] == 403, text[:80]
            tried[ROW] += 1


def test_in_protobuf(edge: tuple[int, dict[str, str]], tried: Counter[str]) -> None:
    port, mine = edge
    message = service_pb2.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="IN", datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))
    plain = message.SerializeToString()
    key, one = b"\x0a\x08priority", b"\x28\x01"
    entries = (
        key + b"\x12\x02" + one,
        b"\x8a\x00\x08priority\x12\x02" + one,
        key + b"\x92\x00\x02" + one,
        key + b"\x12\x04" + one + b"\x78\x01",
        key + b"\x12\x03\xa8\x00\x01",
        key + b"\x12\x02" + one + b"\x12\x00",
        key + b"\x12\x0b\x28\x81" + b"\x80" * 8 + b"\x02",
        key + b"\x12\x04" + one + b"\x18\x05",
    )
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = (("authorization", mine["authorization"]),)
        unary = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        assert unary(plain, metadata=metadata, timeout=60)
        for entry in entries:
            for sent in (
                plain + b"\x22" + encode_varint(len(entry)) + entry,
                b"\x22" + encode_varint(len(entry)) + entry + plain,
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    unary(sent, metadata=metadata, timeout=60)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, entry
                with pytest.raises(grpc.RpcError):
                    list(stream(iter([sent]), metadata=metadata, timeout=60))
                tried[ROW] += 2
        # The last name of a model is the one that runs, and the one that is judged, however its tag is written.
        for tag in (b"\x0a", b"\x8a\x00", b"\x8a\x80\x80\x80\x00"):
            with pytest.raises(grpc.RpcError) as caught:
                unary(plain + tag + b"\x05other", metadata=metadata, timeout=60)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            tried["another model's name behind the first"] += 1
