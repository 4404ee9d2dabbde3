"""Requests that are cancelled, late or too many, beside real Triton."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
from calls import COMPARED, Pair, until
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

pytestmark = pytest.mark.peers


@pytest.fixture
def stubs(pair: Pair) -> Iterator[list[Any]]:
    """Of Triton, then of ours."""
    with ExitStack() as channels:
        yield [
            service_pb2_grpc.GRPCInferenceServiceStub(channels.enter_context(grpc.insecure_channel(server.grpc)))
            for server in pair.both
        ]


def request_of(model: str, value: float, sequence: int = 0, start: bool = False, end: bool = False) -> Any:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    message.raw_input_contents.append(np.array([value], "<f4").tobytes())
    if sequence:
        message.parameters["sequence_id"].int64_param = sequence
        message.parameters["sequence_start"].bool_param = start
        message.parameters["sequence_end"].bool_param = end
    return message


def outcome(call: Any) -> tuple[str, list[float]]:
    try:
        return "OK", np.frombuffer(call.result(timeout=60).raw_output_contents[0], "<f4").tolist()
    except (grpc.FutureCancelledError, grpc.RpcError):
        return str(call.code().name), []


#: A queued request shows nowhere: servers are given this long to have read it before the next step.
_READ_SECONDS = 1.0


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_cancelling_one_of_a_sequence(pair: Pair, stubs: list[Any], held: Any, which: int) -> None:
    """The one that runs is past it; a queued one takes those behind it along, and the sequence ends."""
    seen = []
    for number, (server, stub) in enumerate(zip(pair.both, stubs, strict=True)):
        sequence = 100 + 10 * which + number + (1000 if pair.ours.name == "gateway" else 0)
        with held():
            calls = []
            for index in range(4):
                message = request_of("held_sequence", index, sequence, index == 0)
                calls.append(stub.ModelInfer.future(message, timeout=60))
                held.running(server)
                time.sleep(_READ_SECONDS)
            calls[which].cancel()
            time.sleep(_READ_SECONDS)
        outcomes = [outcome(call) for call in calls]
        follower = outcome(stub.ModelInfer.future(request_of("held_sequence", 9, sequence), timeout=60))
        restarted = outcome(stub.ModelInfer.future(request_of("held_sequence", 10, sequence, True, True), timeout=60))
        seen.append((outcomes, follower, restarted))
    COMPARED[pair.group] += 6
    assert seen[1] == seen[0]


def test_cancelling_a_queued_request_leaves_the_others(pair: Pair, stubs: list[Any], held: Any) -> None:
    seen = []
    for server, stub in zip(pair.both, stubs, strict=True):
        with held():
            running = stub.ModelInfer.future(request_of("held", 1), timeout=60)
            held.running(server)
            queued = stub.ModelInfer.future(request_of("held", 2), timeout=60)
            time.sleep(_READ_SECONDS)
            queued.cancel()
            time.sleep(_READ_SECONDS)
        outcomes = [outcome(call) for call in (running, queued)]
        # Triton keeps the cancelled one's place in the queue for a moment.
        until(lambda stub=stub: outcome(stub.ModelInfer.future(request_of("held", 3), timeout=60)) == ("OK", [3.0]))
        seen.append(outcomes)
    COMPARED[pair.group] += 3
    assert seen[1] == seen[0]


def test_a_full_queue(pair: Pair, stubs: list[Any], held: Any) -> None:
    """docs/protocol.md: 429 and RESOURCE_EXHAUSTED, where Triton has 503 and UNAVAILABLE."""
    with held():
        calls = []
        for _ in range(2):
            calls += [stub.ModelInfer.future(request_of("held", 1), timeout=60) for stub in stubs]
            for server in pair.both:
                held.running(server)
            time.sleep(_READ_SECONDS)
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        words = "Exceeds maximum queue size"
        pair.http_error(words, ("POST", "/v2/models/held/infer", body), 429, 503)
        pair.grpc_error(words, "ModelInfer", request_of("held", 3), "RESOURCE_EXHAUSTED", "UNAVAILABLE")
    assert [outcome(call) for call in calls] == [("OK", [1.0])] * 4


def test_a_deadline_that_passes(pair: Pair, stubs: list[Any], held: Any) -> None:
    seen = []
    with held():
        for stub in stubs:
            with pytest.raises(grpc.RpcError, match="Deadline Exceeded") as caught:
                stub.ModelInfer(request_of("held", 1), timeout=0.5)
            seen.append(caught.value.code())
    COMPARED[pair.group] += 1
    assert seen[0] == seen[1] == grpc.StatusCode.DEADLINE_EXCEEDED
