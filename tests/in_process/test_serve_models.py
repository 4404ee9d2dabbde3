"""Functions, classes, objects and generators that are served from code, as their callers see them."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import isochrone
from isochrone.errors import DeadlineExceeded, Internal, InvalidArgument, ModelFailed

X = {"x": "FP32[3]"}
ROW = np.float32([[1, 2, 3]])


def double(x: Any) -> Any:
    return {"y": x * 2}


def served(model: Any, **options: Any) -> isochrone.Server:
    return isochrone.serve(model, block=False, **{"http_port": 0, "grpc_port": 0, "metrics_port": 0, **options})


def test_a_function_over_both_protocols() -> None:
    with served(double, inputs=X) as server:
        for url in (server.http_url, server.grpc_url):
            with isochrone.Client(url) as client:
                answer = client.infer("double", {"x": ROW[0]}, id="a")
        assert answer["y"].tolist() == [2, 4, 6]
        assert (answer.id, answer.model_name, answer.model_version) == ("a", "double", "1")
        assert server.models == ("double",)
        with urllib.request.urlopen(server.metrics_url) as page:
            assert b'nv_inference_request_success{model="double",version="1"} 2' in page.read()


def test_rows_of_requests_that_arrive_together_run_together() -> None:
    rows = []
    holding, held = threading.Event(), threading.Event()

    def batched(x: Any) -> Any:
        rows.append(len(x))
        if x[0, 0] == 7:
            holding.set()
            assert held.wait(60)
        return {"y": x * 2}

    async def run(server: isochrone.Server) -> list[Any]:
        async with isochrone.AsyncClient(server.http_url) as client:
            first = asyncio.ensure_future(client.infer("batched", {"x": np.float32([[7, 0, 0]])}))
            await asyncio.to_thread(holding.wait)
            others = [asyncio.ensure_future(client.infer("batched", {"x": ROW + i})) for i in range(4)]
            while "} 4" not in await asyncio.to_thread(pending, server):  # noqa: ASYNC110 (a count of the server)
                await asyncio.sleep(0.01)
            held.set()
            return [await first, *await asyncio.gather(*others)]

    def pending(server: isochrone.Server) -> str:
        with urllib.request.urlopen(server.metrics_url) as page:
            lines = page.read().decode().splitlines()
        return next(line for line in lines if line.startswith("nv_inference_pending_request_count{"))

    with served(batched, inputs=X, batch=8, parameters={"auto_warmup": "false"}) as server:
        answers = asyncio.run(run(server))
    assert [answer["y"].tolist() for answer in answers[1:]] == [((ROW + i) * 2).tolist() for i in range(4)]
    assert rows[-1] == 4


class Counter:
    """State, and a record of what happened to each object."""

    log: list[str]

    def __init__(self) -> None:
        self.calls = 0

    def load(self, context: Any) -> None:
        self.start = int(context.parameters["start"])
        self.log.append(f"load {context.model_name} {context.instance}")

    def infer(self, inputs: Any) -> Any:
        self.calls += 1
        return {"count": np.array([self.start + int(inputs["by"][0])], np.int32)}

    def close(self) -> None:
        self.log.append("close")


def test_a_class_with_state_is_loaded_once_per_instance_and_closed() -> None:
    Counter.log = []
    with served(Counter, inputs={"by": "INT32[1]"}, instances=2, parameters={"start": "40"}) as server:
        answer = server.client().infer("Counter", {"by": np.int32([2])})
        assert answer["count"].tolist() == [42]
        # The object that was loaded to learn the outputs is one of the two.
        assert Counter.log == ["load Counter 0", "load Counter 1"]
    assert Counter.log[2:] == ["close", "close"]


def test_an_object_is_served_as_it_is() -> None:
    Counter.log = []
    given = Counter()
    with served(given, name="mine", inputs={"by": "INT32[1]"}, parameters={"start": "1"}) as server:
        before = given.calls
        assert server.client().infer("mine", {"by": np.int32([2])})["count"].tolist() == [3]
        assert given.calls == before + 1


def test_a_decorated_class_in_a_list_with_others() -> None:
    @isochrone.model(name="plus", inputs=X, batch=2)
    class Plus:
        def infer(self, inputs: Any) -> Any:
            return {"y": inputs["x"] + np.float32(1)}

    twice = isochrone.model(name="twice", example={"x": np.zeros(3, np.float32)})(lambda x: {"y": x * 2})
    with served([Plus, twice]) as server:
        client = server.client()
        assert client.infer("plus", {"x": ROW})["y"].tolist() == [[2, 3, 4]]
        assert client.infer("twice", {"x": ROW[0]})["y"].tolist() == [2, 4, 6]
        assert client.metadata("plus").inputs[0].shape == (-1, 3)
        assert client.metadata("twice").outputs[0].shape == (3,)


def countdown(start: Any) -> Iterator[Any]:
    for left in range(int(start[0]), -1, -1):
        yield {"left": np.array([left], np.int32)}


async def async_countdown(start: Any) -> AsyncIterator[Any]:
    for left in range(int(start[0]), -1, -1):
        await asyncio.sleep(0)
        yield {"left": np.array([left], np.int32)}


@pytest.mark.parametrize("model", [countdown, async_countdown])
def test_a_generator_is_a_decoupled_model(model: Any) -> None:
    with served(model, inputs={"start": "INT32[1]"}) as server, isochrone.Client(server.grpc_url) as client:
        responses = list(client.stream(server.models[0], {"start": np.int32([3])}))
        assert [int(response["left"][0]) for response in responses] == [3, 2, 1, 0]


def test_leaving_a_stream_closes_the_generator() -> None:
    closed = threading.Event()

    def endless(x: Any) -> Iterator[Any]:
        try:
            while True:
                yield {"y": x}
        finally:
            closed.set()

    types = {"inputs": {"x": "INT32[1]"}, "outputs": {"y": "INT32[1]"}}
    with served(endless, **types) as server, isochrone.Client(server.grpc_url) as client:
        for response in client.stream("endless", {"x": np.int32([1])}):
            assert response["y"].tolist() == [1]
            break
        assert closed.wait(60)


def test_a_model_that_cannot_take_zeros_is_warmed_up_with_its_example() -> None:
    seen = []

    def words(text: Any) -> Any:
        seen.append([word.decode() for word in text.ravel().tolist()])
        return {"length": np.array([[len(word.split()[0])] for word in text.ravel().tolist()], np.int32)}

    with served(words, example={"text": ["hello you"]}, batch=2) as server:
        answer = server.client().infer("words", {"text": [["a b"], ["longer"]]})
    assert answer["length"].tolist() == [[1], [6]]
    assert {word for call in seen for word in call} == {"hello you", "a b", "longer"}
    with pytest.raises(ModelFailed, match="raised IndexError"):
        served(words, inputs={"text": "BYTES[1]"}, batch=2)


def test_tensors_without_an_axis_are_one_element_for_callers() -> None:
    def half(x: Any) -> Any:
        return {"y": x / np.float32(2)}

    with served(half, inputs={"x": "FP32[]"}) as server:
        assert server.client().infer("half", {"x": np.float32([3])})["y"].tolist() == [1.5]
    with served(half, example={"x": np.float32(1)}, batch=4) as server:
        assert server.client().infer("half", {"x": np.float32([[3], [5]])})["y"].tolist() == [[1.5], [2.5]]


def test_the_default_deadline_holds_for_requests_without_one() -> None:
    started, release = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        if x[0] == 1:
            started.set()
            assert release.wait(60)
        return {"y": x}

    options: Any = {"parameters": {"auto_warmup": "false"}, "outputs": {"y": "FP32[1]"}, "deadline_ms": 30}
    with served(slow, inputs={"x": "FP32[1]"}, **options) as server, isochrone.Client(server.grpc_url) as client:

        def call(value: float) -> threading.Thread:
            given = {"x": np.float32([value])}
            thread = threading.Thread(target=lambda: client.infer("slow", given, deadline_ms=60_000))
            thread.start()
            return thread

        held = call(1)
        assert started.wait(60)
        with pytest.raises(DeadlineExceeded, match="Request timeout expired"):
            client.infer("slow", {"x": np.float32([0])})
        later = call(0)
        release.set()
        held.join()
        later.join()


def test_an_exception_of_the_model_names_its_line() -> None:
    def fails(x: Any) -> Any:
        if x[0] > 0:
            raise ValueError("too large")
        return {"y": x}

    with served(fails, inputs={"x": "FP32[1]"}) as server:
        with pytest.raises(
            Internal, match=r"infer raised ValueError: too large \(test_serve_models\.py:\d+\)"
        ) as caught:
            server.client().infer("fails", {"x": np.float32([1])}, id="q7")
        assert (caught.value.status, caught.value.request_id) == ("HTTP 500", "q7")
        with pytest.raises(InvalidArgument, match="unexpected shape for input 'x'"):
            server.client().infer("fails", {"x": np.float32([1, 2])})


def test_a_warm_up_that_fails_names_the_reason_and_frees_everything() -> None:
    class Wrong:
        def infer(self, inputs: Any) -> Any:
            return {"y": inputs["x"].astype(np.float64)}

    with pytest.raises(ModelFailed, match=r"output 'y': expected FP32 \(float32\), given FP64"):
        served(Wrong, inputs=X, outputs={"y": "FP32[3]"})
