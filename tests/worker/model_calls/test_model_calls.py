"""Calls between models, on a real loop: what the called model gets of its caller, refusals, cycles, back-pressure."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.clock import MICROSECOND, NEVER, SECOND, now_ns
from isochrone.errors import InvalidArgument, IsochroneError, ModelFailed, NotFound
from isochrone.protocol.response_outputs import ResponseOutputs
from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.server import Errand, ModelCall
from isochrone.worker.backends.python.triton.tensors import Tensor
from isochrone.worker.model_calls.server import CallsOfModels, ModelServer

ROW = np.ones((1, 2), np.float32)


class Served:
    """A version that keeps the requests it is given; the test answers them."""

    def __init__(self, name: str, config: str = "", *, decoupled: bool = False, is_async: bool = False) -> None:
        self.model_name, self.model_version = name, "1"
        self.decoupled = decoupled
        message = text_format.Parse(config, model_config_pb2.ModelConfig(name=name))
        self.description = SimpleNamespace(config=message)
        self.runner = SimpleNamespace(instances=[SimpleNamespace(executable=SimpleNamespace(is_async=is_async))])
        self.requests: list[Any] = []
        self.rejection: IsochroneError | None = None
        #: Called with each request before the loop does anything else: before a deadline can pass.
        self.begin: Callable[[Any], None] = lambda request: None

    def submit(self, request: Any) -> None:
        if self.rejection is not None:
            raise self.rejection
        self.requests.append(request)
        self.begin(request)


class Bench:
    """Versions by name, and the server as the model ``caller`` sees it."""

    def __init__(self, *versions: Served) -> None:
        self._versions = {served.model_name: served for served in versions}
        self.controlled: list[Any] = []
        calls = CallsOfModels(self._find, self._is_ready, self._load, self._unload)
        self.server: ModelServer = calls.of("caller", "1")
        self.responses: list[tuple[InferenceResponse, bool]] = []

    def _find(self, name: str, version: str) -> Any:
        if name not in self._versions or version not in ("", "1"):
            raise NotFound(f"no model '{name}'")
        return self._versions[name]

    def _is_ready(self, name: str, version: str) -> bool:
        if not version.isdigit() and version:
            raise InvalidArgument("a version is a number")
        return name in self._versions

    async def _load(self, name: str, parameters: Any) -> None:
        if name == "nobody":
            raise NotFound("no model 'nobody'")
        self.controlled.append((name, dict(parameters)))

    async def _unload(self, name: str, dependents: bool) -> None:
        self.controlled.append((name, dependents))

    async def call(self, model: str = "called", **more: Any) -> Callable[[], None]:
        """Makes a call from a thread, as models do; returns when the loop has taken it."""
        defaults: dict[str, Any] = {
            "model_name": model,
            "model_version": -1,
            "inputs": [Tensor("x", ROW)],
            "outputs": frozenset({"y"}),
            "request_id": "r",
            "correlation_id": 0,
            "flags": 0,
            "timeout_us": 0,
            "parameters": {},
            "takes_many": False,
            "errand": Errand(),
        }
        call = ModelCall(**{**defaults, **more})
        cancel = await asyncio.to_thread(self.server.call, call, lambda *response: self.responses.append(response))
        await asyncio.sleep(0)
        return cancel

    def error(self) -> TritonError:
        ((response, is_last),) = self.responses
        assert is_last
        error = response.error()
        assert error is not None
        return error


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_called_model_gets_what_the_caller_gave() -> None:
    async def scenario() -> None:
        served = Served("called")
        bench = Bench(served)
        await bench.call(
            model_version=1,
            inputs=[Tensor("x", ROW), Tensor("t", np.array([["ä", b"b"]], object))],
            outputs=frozenset({"z", "y"}),
            parameters={"p": 1},
            correlation_id="seven",
            flags=3,
        )
        (request,) = served.requests
        plan = request.plan
        assert (plan.model_name, plan.model_version, plan.outputs) == ("called", "1", ("y", "z"))
        assert (plan.parameters, plan.sequence_id) == ({"p": 1}, "seven")
        assert plan.sequence_start
        assert plan.sequence_end
        assert request.id == "r"
        assert request.inputs["t"].tolist() == [["ä".encode(), b"b"]]
        assert request.shares_inputs
        assert request.endpoint() == "BLS"

    run(scenario)


def test_no_outputs_named_are_all_outputs() -> None:
    async def scenario() -> None:
        served = Served("called")
        await Bench(served).call(outputs=frozenset())
        assert served.requests[0].plan.outputs is None

    run(scenario)


def test_deadline_priority_and_chain_are_those_of_the_errand() -> None:
    async def scenario() -> None:
        served = Served("called")
        bench = Bench(served)
        deadline = now_ns() + SECOND
        await bench.call(errand=Errand(deadline, 2, (("first", "1"),)))
        await bench.call(errand=Errand(deadline, 0, ()), timeout_us=10)
        await bench.call(errand=Errand(NEVER, 0, ()), timeout_us=10_000_000)
        await bench.call()
        plain, short, own, free = served.requests
        assert (plain.deadline, plain.plan.priority) == (deadline, 2)
        assert plain.call_chain == (("first", "1"), ("caller", "1"), ("called", "1"))
        assert short.deadline < deadline
        assert short.plan.timeout_ns == 10 * MICROSECOND
        assert now_ns() < own.deadline < now_ns() + 11 * SECOND
        assert free.deadline == NEVER
        assert free.call_chain == (("caller", "1"), ("called", "1"))

    run(scenario)


def test_a_step_of_a_chain_is_not_counted_twice() -> None:
    """The errand of a called model ends with its own name."""

    async def scenario() -> None:
        served = Served("called")
        await Bench(served).call(errand=Errand(NEVER, 0, (("first", "1"), ("caller", "1"))))
        assert served.requests[0].call_chain == (("first", "1"), ("caller", "1"), ("called", "1"))

    run(scenario)


def test_answers() -> None:
    async def scenario() -> None:
        served = Served("called")
        bench = Bench(served)
        await bench.call()
        served.requests[0].complete(ResponseOutputs({"y": ROW * 2}, {"p": "ä"}), {"p": "ä"})
        served.requests[0].fail(ModelFailed("too late"))
        ((response, is_last),) = bench.responses
        assert is_last
        assert response.output_tensors()[0].as_numpy().tolist() == [[2, 2]]
        assert response.parameters() == '{"p":"ä"}'

    run(scenario)


def test_errors_keep_their_code_and_refusals_have_tritons_words() -> None:
    async def scenario() -> None:
        served = Served("called")
        bench = Bench(served)
        await bench.call()
        served.requests[0].fail(NotFound("not there"))
        assert (bench.error().message(), bench.error().code()) == ("not there", TritonError.NOT_FOUND)
        bench.responses.clear()
        served.rejection = InvalidArgument("no such input")
        await bench.call()
        assert bench.error().message() == "Model called - Error when running inference: no such input"
        assert bench.error().code() == TritonError.INTERNAL
        for arguments in ({"model": "nobody"}, {"model_version": 7}):
            bench.responses.clear()
            await bench.call(**arguments)
            name = arguments.get("model", "called")
            assert bench.error().message() == (
                f"Model {name} - Error when running inference: Failed for execute the inference request."
                f" Model '{name}' is not ready."
            )

    run(scenario)


def test_a_decoupled_model_needs_a_caller_who_takes_many() -> None:
    async def scenario() -> None:
        served = Served("called", decoupled=True)
        bench = Bench(served)
        await bench.call()
        assert "Please use 'decoupled=True'" in bench.error().message()
        bench.responses.clear()
        await bench.call(takes_many=True)
        (request,) = served.requests
        request.emit({"y": ROW})
        request.emit({"y": ROW})
        request.finish()
        request.emit({"y": ROW})
        assert [is_last for _, is_last in bench.responses] == [False, False, True]
        assert bench.responses[-1][0].output_tensors() == []
        bench.responses.clear()
        await bench.call(takes_many=True)
        served.requests[-1].finish_with({"y": ROW})
        assert [is_last for _, is_last in bench.responses] == [True]

    run(scenario)


def test_a_caller_may_write_to_what_it_gets_without_touching_its_own() -> None:
    async def scenario() -> None:
        served = Served("called")
        bench, mine = Bench(served), np.ones(2, np.float32)
        await bench.call(inputs=[Tensor("x", mine)])
        request = served.requests[0]
        fresh = np.zeros(2, np.float32)
        request.complete({"same": request.inputs["x"], "fresh": fresh})
        same, other = bench.responses[0][0].output_tensors()
        same.as_numpy()[...] = 9
        assert mine.tolist() == [1, 1]
        assert other.as_numpy() is fresh

    run(scenario)


def test_a_cancelled_call() -> None:
    async def scenario() -> None:
        served = Served("called")
        bench = Bench(served)
        cancel = await bench.call()
        cancel()
        assert served.requests[0].cancelled
        served.requests[0].dropped()
        assert bench.error().code() == TritonError.CANCELLED

    run(scenario)


def test_a_stream_that_its_caller_does_not_read_is_congested() -> None:
    async def scenario() -> None:
        served = Served("called", decoupled=True)
        bench = Bench(served)
        cancel = await bench.call(takes_many=True)
        (request,) = served.requests
        freed: list[int] = []
        while not request.is_congested:
            request.emit({"y": ROW})
        assert len(bench.responses) == 64
        request.when_writable(lambda: freed.append(1))
        await asyncio.sleep(0)
        assert freed == []
        taken = bench.responses[0][0].taken
        assert taken is not None
        await asyncio.to_thread(taken)
        await asyncio.sleep(0)
        assert freed == [1]
        assert not request.is_congested
        request.emit({"y": ROW})
        assert request.is_congested
        request.when_writable(lambda: freed.append(2))
        await asyncio.to_thread(cancel)
        await asyncio.sleep(0)
        assert freed == [1, 2]
        assert not request.is_congested

    run(scenario)


def test_a_stream_ends_at_its_deadline() -> None:
    """While its caller reads nothing, the called model waits; others must not wait with it for ever."""

    async def scenario() -> None:
        served = Served("called", decoupled=True)
        bench = Bench(served)
        await bench.call(takes_many=True, timeout_us=60_000_000)
        (punctual,) = served.requests
        punctual.finish()
        bench.responses.clear()
        freed = asyncio.Event()

        def fill(request: Any) -> None:
            while not request.is_congested:
                request.emit({"y": ROW})
            request.when_writable(freed.set)

        served.begin = fill
        await bench.call(takes_many=True, timeout_us=1000)
        _, late = served.requests
        await freed.wait()
        assert late.cancelled
        assert not punctual.cancelled
        response, is_last = bench.responses[-1]
        assert is_last
        error = response.error()
        assert error is not None
        assert "the deadline of the call passed" in error.message()
        late.dropped()
        assert bench.responses[-1][0] is response

    run(scenario)


def test_a_call_that_is_cancelled_before_the_loop_has_taken_it() -> None:
    async def scenario() -> None:
        served = Served("called", decoupled=True)
        bench = Bench(served)
        call = ModelCall("called", -1, [], frozenset(), "", 0, 0, 0, {}, True, Errand())
        bench.server.call(call, lambda *response: None)()
        assert served.requests == []
        await asyncio.sleep(0)
        assert served.requests[0].cancelled

    run(scenario)


def ensemble(name: str, *steps: str) -> Served:
    return Served(
        name,
        "ensemble_scheduling { "
        + " ".join(f'step {{ model_name: "{each}" model_version: -1 }}' for each in steps)
        + " }",
    )


def chain(*names: str) -> Errand:
    return Errand(NEVER, 0, tuple((name, "1") for name in names))


@pytest.mark.parametrize(
    ("versions", "model", "waiting", "is_cycle"),
    [
        ([Served("a")], "a", (), False),
        ([Served("a")], "a", ("a",), True),
        ([Served("a")], "a", ("a", "b"), True),
        ([Served("a", "instance_group { count: 2 }")], "a", ("a",), False),
        ([Served("a", "instance_group { count: 2 }")], "a", ("a", "b", "a"), True),
        ([Served("a", "instance_group { count: 1 } instance_group { count: 1 }")], "a", ("a",), False),
        ([Served("a"), ensemble("e", "a")], "e", ("a",), True),
        ([Served("a"), Served("b"), ensemble("e", "b")], "e", ("a",), False),
        ([Served("a"), ensemble("e", "a"), ensemble("outer", "e")], "outer", ("a",), True),
        ([ensemble("e", "not_there")], "e", ("a",), False),
        ([Served("a"), ensemble("e", "a")], "e", ("e",), False),
    ],
)
def test_cycles(versions: list[Served], model: str, waiting: tuple[str, ...], is_cycle: bool) -> None:
    async def scenario() -> None:
        for served in versions:
            served.requests.clear()
        bench = Bench(*versions)
        await bench.call(model, errand=chain(*waiting))
        called = next(served for served in versions if served.model_name == model)
        assert len(called.requests) == (not is_cycle)
        if is_cycle:
            assert "cannot be called in a cycle (" in bench.error().message()

    run(scenario)


@pytest.mark.parametrize(("is_async", "depth", "is_refused"), [(False, 1, True), (True, 1, False), (True, 31, True)])
def test_a_decoupled_model_that_calls_itself(is_async: bool, depth: int, is_refused: bool) -> None:
    """A coroutine that waits leaves its instance free; the depth is limited all the same."""

    async def scenario() -> None:
        served = Served("caller", decoupled=True, is_async=is_async)
        bench = Bench(served)
        await bench.call("caller", takes_many=True, errand=chain(*["caller"] * (depth + (depth > 1))))
        assert len(served.requests) == (not is_refused)

    run(scenario)


def test_questions_to_the_server() -> None:
    async def scenario() -> None:
        bench = Bench(Served("called"))
        ask = asyncio.to_thread
        assert await ask(bench.server.is_model_ready, "called", "")
        assert not await ask(bench.server.is_model_ready, "nobody", "1")
        await ask(bench.server.load_model, "m", '{"a":1}', {"file:1/model.py": b"\xff"})
        await ask(bench.server.unload_model, "m", True)
        encoded = base64.b64encode(b"\xff").decode()
        assert bench.controlled == [("m", {"config": '{"a":1}', "file:1/model.py": encoded}), ("m", True)]
        with pytest.raises(TritonModelException, match="no model 'nobody'"):
            await ask(bench.server.load_model, "nobody", "", None)
        with pytest.raises(TritonModelException, match="a version is a number"):
            await ask(bench.server.is_model_ready, "m", "first")
        assert await ask(lambda: bench.server.may_block)

    run(scenario)


def test_the_loops_own_thread_must_not_wait() -> None:
    async def scenario() -> None:
        bench = Bench(Served("called"))
        assert not bench.server.may_block
        with pytest.raises(TritonModelException, match="where it must not wait"):
            bench.server.load_model("called", "", None)
        with pytest.raises(TritonModelException, match="where it must not wait"):
            bench.server.unload_model("called", False)
        assert bench.controlled == []

    run(scenario)


def test_readiness_needs_no_waiting() -> None:
    """A model that runs on the loop's thread may ask for it."""

    async def scenario() -> None:
        bench = Bench(Served("called"))
        assert bench.server.is_model_ready("called", "")
        assert not bench.server.is_model_ready("nobody", "")
        with pytest.raises(TritonModelException, match="a version is a number"):
            bench.server.is_model_ready("called", "first")

    run(scenario)


def test_a_call_after_the_server_has_stopped() -> None:
    kept: list[Bench] = []

    async def scenario() -> None:
        kept.append(Bench(Served("called")))

    run(scenario)
    (bench,) = kept
    call = ModelCall("called", -1, [], frozenset(), "", 0, 0, 0, {}, False, Errand())
    cancel = bench.server.call(call, lambda *response: bench.responses.append(response))
    assert "the server is stopping" in bench.error().message()
    cancel()
