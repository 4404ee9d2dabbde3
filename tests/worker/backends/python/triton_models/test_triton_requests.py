"""``pb_utils.InferenceRequest``: as a model gets it, and as a model makes it to call another."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called_server import RecordedServer
from queued_requests import RecordedRequest

from isochrone.clock import NEVER
from isochrone.protocol.messages import Plan
from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.server import Errand, errand
from isochrone.worker.backends.python.triton.tensors import Tensor
from isochrone.worker.backends.python.triton.utilities import make_module


def request_type(server: RecordedServer) -> Any:
    return make_module(server, Path("/nowhere")).InferenceRequest


def made(server: RecordedServer, **arguments: Any) -> Any:
    defaults: dict[str, Any] = {"model_name": "other", "inputs": [], "requested_output_names": ["OUT"]}
    return request_type(server)(**{**defaults, **arguments})


def no_outlet(wanted: set[str]) -> Any:
    raise AssertionError("nobody asked for a sender")


def test_what_a_received_request_shows() -> None:
    plan = Plan(
        "m",
        "",
        (("B", "FP32", (2,)), ("A", "FP32", (1,))),
        None,
        {"own": 1, "text": "x"},
        timeout_ns=5_000_000,
        sequence_id="seven",
        sequence_start=True,
        sequence_end=True,
    )
    received = RecordedRequest(plan, {"B": np.zeros(2), "A": np.ones(1)}, request_id="r")
    request = request_type(RecordedServer()).received(received, {"OUT"}, no_outlet)
    assert request.request_id() == "r"
    assert request.correlation_id() == "seven"
    assert request.flags() == 3
    assert request.timeout() == 5000
    assert request.parameters() == '{"own":1,"text":"x"}'
    assert request.model_name() == "m"
    assert request.requested_output_names() == {"OUT"}
    assert [tensor.name() for tensor in request.inputs()] == ["B", "A"]
    assert request.inputs() is request.inputs()
    assert request.trace().get_context() is None
    assert not request.is_cancelled()
    received.cancelled = True
    assert request.is_cancelled()
    request.disown()  # its answer was returned


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"model_name": None}, TypeError, "expected the argument model_name"),
        ({"inputs": None}, TypeError, "expected the argument inputs"),
        ({"inputs": [5]}, TypeError, "expected Tensor objects, given a int"),
        ({"inputs": [None], "request_id": "r"}, TritonModelException, "Input tensor for request with id 'r'"),
        ({"requested_output_names": ["A", ""]}, TritonModelException, "Requested output name for request"),
        ({"correlation_id": 1.5}, TritonModelException, "Correlation ID must be integer or string"),
        ({"parameters": {"a": []}}, TritonModelException, "type bool/int/str"),
    ],
)
def test_requests_that_cannot_be_made(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        made(RecordedServer(), **arguments)


def test_a_request_of_ones_own_has_no_sender() -> None:
    with pytest.raises(TritonModelException, match="no reference to the decoupled state"):
        made(RecordedServer()).get_response_sender()


def test_what_a_call_carries() -> None:
    server = RecordedServer()
    tensor = Tensor("IN", np.zeros(2))
    request = made(
        server, inputs=[tensor], request_id="r", correlation_id=4, model_version=2, timeout=9, parameters={"p": True}
    )
    request.set_flags(2)
    token = errand.set(Errand(123, 4, (("caller", "1"),)))
    try:
        request.exec()
    finally:
        errand.reset(token)
    (call,) = server.calls
    assert (call.model_name, call.model_version, call.inputs) == ("other", 2, [tensor])
    assert (call.outputs, call.request_id, call.correlation_id) == (frozenset({"OUT"}), "r", 4)
    assert (call.flags, call.timeout_us, call.parameters, call.takes_many) == (2, 9, {"p": True}, False)
    assert call.errand == Errand(123, 4, (("caller", "1"),))


def test_a_thread_of_the_model_is_on_nobodys_errand() -> None:
    server = RecordedServer()
    token = errand.set(Errand(123, 4, (("caller", "1"),)))
    try:
        thread = threading.Thread(target=made(server).exec)
        thread.start()
        thread.join()
    finally:
        errand.reset(token)
    assert server.calls[0].errand == Errand(NEVER, 0, ())


def test_waiting_where_the_server_must_not() -> None:
    server = RecordedServer()
    server.may_block = False
    with pytest.raises(TritonModelException, match=r'set the parameter inline: "false" in config.pbtxt'):
        made(server).exec()
    assert not server.calls


@pytest.mark.parametrize("count", [1, 2, 50])
def test_streams(count: int) -> None:
    responses = [InferenceResponse() for _ in range(count)]
    server = RecordedServer(lambda call: responses)
    assert list(made(server).exec(decoupled=True)) == responses
    assert list(made(server).stream_exec()) == responses
    assert server.calls[0].takes_many
    assert server.cancelled == 0

    async def scenario() -> None:
        assert list(await made(server).async_exec(decoupled=True)) == responses
        assert list(await made(server).async_stream_exec()) == responses

    asyncio.run(scenario())


def test_several_calls_of_a_coroutine_at_once() -> None:
    server = RecordedServer(lambda call: [InferenceResponse(parameters={"id": call.request_id})])

    async def scenario() -> None:
        calls = [made(server, request_id=str(number)).async_exec() for number in range(20)]
        found = await asyncio.gather(*calls)
        assert [response.given_parameters["id"] for response in found] == [str(number) for number in range(20)]

    asyncio.run(scenario())


def test_a_coroutine_that_waits_no_longer() -> None:
    """Its response comes when nobody is there; nothing breaks."""
    gate, over = threading.Event(), threading.Event()

    def respond(call: Any) -> list[InferenceResponse]:
        return [InferenceResponse()]

    class Late(RecordedServer):
        def call(self, call: Any, deliver: Any) -> Any:
            def answer() -> None:
                gate.wait()
                deliver(InferenceResponse(), True)
                over.set()

            threading.Thread(target=answer).start()
            return self._cancel

    async def scenario() -> None:
        call = made(Late(respond)).async_exec()
        call.cancel()

    asyncio.run(scenario())
    gate.set()
    assert over.wait(60)


def test_async_exec_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        made(RecordedServer()).async_exec()


def test_rescheduling_is_refused() -> None:
    request = made(RecordedServer())
    request.set_release_flags(1)
    with pytest.raises(TritonModelException, match="iterative_sequence"):
        request.set_release_flags(2)
