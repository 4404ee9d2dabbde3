"""Triton python models that call other models, in a real worker: cycles, depth, deadlines, and callers that leave."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from triton_models import FOUNTAIN, TritonWorker, parameter

from watching import wait_for

#: Calls the model that ``NEXT`` names, and passes its answer or its error on.
_CALLS = """
def execute(self, requests):
    answers = []
    for request in requests:
        response = call("NEXT", *request.inputs()[0].as_numpy()).exec()
        if response.has_error():
            answers.append(pb_utils.InferenceResponse(error=response.error()))
        else:
            answers.append(respond(*response.output_tensors()[0].as_numpy()))
    return answers
"""


def calls(model: str) -> str:
    return _CALLS.replace("NEXT", model)


def ensemble_of(worker: TritonWorker, name: str, step: str) -> None:
    directory = worker.repository / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(
        f'name: "{name}"\nplatform: "ensemble"\n'
        'input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }\n'
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }\n'
        f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1'
        ' input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }\n'
    )
    status, text = worker.load(name)
    assert status == 200, text


def test_a_chain_of_calls(worker: TritonWorker) -> None:
    worker.serve("last")
    worker.serve("middle", calls("last"))
    worker.serve("first", calls("middle"))
    assert worker.infer("first", 1, 2, 3) == (200, [1, 2, 3])


def test_a_model_that_calls_itself(worker: TritonWorker) -> None:
    worker.serve("selfish", calls("selfish"))
    status, text = worker.infer("selfish", 1)
    assert status == 500
    assert "Model 'selfish' cannot be called in a cycle (selfish → selfish)" in text


def test_two_models_that_call_each_other(worker: TritonWorker) -> None:
    worker.serve("ping", calls("pong"))
    worker.serve("pong", calls("ping"))
    for model, other in (("ping", "pong"), ("pong", "ping")):
        status, text = worker.infer(model, 1)
        assert status == 500
        assert f"cannot be called in a cycle ({model} → {other} → {model})" in text


_CALLS_FROM_A_THREAD = """
def initialize(self, args):
    from concurrent.futures import ThreadPoolExecutor

    self.pool = ThreadPoolExecutor(1)

def execute(self, requests):
    answers = []
    for request in requests:
        response = self.pool.submit(call("NEXT", given(request)).exec).result()
        answers.append(pb_utils.InferenceResponse(error=response.error()) if response.has_error() else respond(1))
    return answers
"""


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_two_models_that_call_each_other_from_threads(worker: TritonWorker, isolation: str) -> None:
    for model, other in (("tick", "tock"), ("tock", "tick")):
        worker.serve(model, _CALLS_FROM_A_THREAD.replace("NEXT", other), more=parameter("isolation", isolation))
    status, text = worker.infer("tick", 1)
    assert status == 500
    assert "cannot be called in a cycle (tick → tock → tick)" in text


def test_a_cycle_through_an_ensemble(worker: TritonWorker) -> None:
    worker.serve("inner", calls("outer"))
    ensemble_of(worker, "outer", "inner")
    for model in ("inner", "outer"):
        status, text = worker.infer(model, 1)
        assert status == 500
        assert "cannot be called in a cycle" in text


def test_a_model_with_instances_enough_may_call_itself(worker: TritonWorker) -> None:
    """Three instances: a call may wait for two others of the same model."""
    worker.serve(
        "counts_down",
        """
        def execute(self, requests):
            value = given(requests[0])
            if value == 0:
                return [respond(100)]
            response = call("counts_down", value - 1).exec()
            if response.has_error():
                return [pb_utils.InferenceResponse(error=response.error())]
            return [respond(int(response.output_tensors()[0].as_numpy()[0]) + value)]
        """,
        more="instance_group [ { count: 3 kind: KIND_CPU } ]",
    )
    assert worker.infer("counts_down", 2) == (200, [103])
    status, text = worker.infer("counts_down", 3)
    assert status == 500
    assert "cannot be called in a cycle" in text


def test_callers_that_hold_all_instances_of_each_other_are_answered(worker: TritonWorker) -> None:
    """Two requests in flight, each with half of what the other needs: their deadlines end the wait."""
    worker.serve(
        "entwined",
        """
        def execute(self, requests):
            value = given(requests[0])
            if value == 0:
                return [respond(1)]
            time.sleep(0.1)  # until both have begun
            response = call("entwined", value - 1).exec()
            return [pb_utils.InferenceResponse(error=response.error()) if response.has_error() else respond(2)]
        """,
        more="instance_group [ { count: 2 kind: KIND_CPU } ]",
    )
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: worker.infer("entwined", 1, timeout=400_000), range(2)))
    assert any(status != 200 for status, _ in found), found
    assert worker.infer("entwined", 1) == (200, [2])


def test_calls_deeper_than_the_limit(worker: TritonWorker) -> None:
    """The instance of a decoupled model is free while its coroutine waits: the depth alone ends it."""
    worker.serve(
        "deep",
        """
        async def execute(self, requests):
            for request in requests:
                (first, *_) = await call("deep", given(request) + 1).async_exec(decoupled=True)
                sender = request.get_response_sender()
                if first.has_error():
                    sender.send(pb_utils.InferenceResponse(error=first.error()), FINAL)
                else:
                    sender.send(first, FINAL)
        """,
        decoupled=True,
    )
    (text,) = worker.stream("deep", 0)
    assert "cannot be called in a cycle (deep → deep → deep → …)" in text


def test_a_decoupled_model_that_waits_for_itself(worker: TritonWorker) -> None:
    worker.serve(
        "stream_of_itself",
        """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            (first, *_) = call("stream_of_itself", 1).exec(decoupled=True)
            sender.send(pb_utils.InferenceResponse(error=first.error()), FINAL)
        """,
        decoupled=True,
    )
    (text,) = worker.stream("stream_of_itself", 0)
    assert "cannot be called in a cycle (stream_of_itself → stream_of_itself)" in text


def test_calls_of_models_that_are_not_there(worker: TritonWorker) -> None:
    worker.serve("asks", calls("nobody"))
    assert worker.infer("asks", 1) == (
        500,
        "Model nobody - Error when running inference: Failed for execute the inference request. Model 'nobody' is not"
        " ready.",
    )


def test_a_call_of_a_model_that_is_unloaded(worker: TritonWorker) -> None:
    worker.serve("going")
    worker.serve("calls_going", calls("going"))
    assert worker.infer("calls_going", 3) == (200, [3])
    worker.unload("going")
    status, text = worker.infer("calls_going", 3)
    assert status == 500
    assert "Model 'going' is not ready." in text
    assert worker.load("going")[0] == 200
    assert worker.infer("calls_going", 3) == (200, [3])


def test_a_model_that_is_unloaded_while_it_is_called(worker: TritonWorker) -> None:
    directory = worker.serve(
        "goes_late",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(os.path.join(self.folder, "entered"), "w").close()
            wait_for(os.path.join(self.folder, "open"))
            return [respond(5) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    worker.serve("calls_late", calls("goes_late"))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(worker.infer, "calls_late", 1)
        wait_for((directory / "entered").exists)
        unloading = pool.submit(worker.unload, "goes_late")
        wait_for(lambda: not worker.is_ready("goes_late"))
        (directory / "open").touch()
        assert unloading.result()[0] == 200
        assert waiting.result() == (200, [5])


def test_the_deadline_of_the_caller_is_that_of_the_called(worker: TritonWorker) -> None:
    """A called model whose only instance is busy is not waited for longer than the caller would wait."""
    directory = worker.serve(
        "busy",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            if given(requests[0]) < 0:
                open(os.path.join(self.folder, "entered"), "w").close()
                wait_for(os.path.join(self.folder, "open"))
            return [respond(5) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    worker.serve("hurried", calls("busy"))
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(worker.infer, "busy", -1)
        wait_for((directory / "entered").exists)
        status, text = worker.infer("hurried", 1, timeout=200_000)
        assert status in (429, 500, 503, 504), text
        (directory / "open").touch()
        assert holding.result() == (200, [5])


def test_a_call_with_a_limit_of_its_own(worker: TritonWorker) -> None:
    directory = worker.serve(
        "occupied",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            if given(requests[0]) < 0:
                open(os.path.join(self.folder, "entered"), "w").close()
                wait_for(os.path.join(self.folder, "open"))
            return [respond(5) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    worker.serve(
        "limits",
        """
        def execute(self, requests):
            response = call("occupied", 1, timeout=100_000).exec()
            return [respond(int(response.has_error())) for _ in requests]
        """,
    )
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(worker.infer, "occupied", -1)
        wait_for((directory / "entered").exists)
        assert worker.infer("limits", 1) == (200, [1])
        (directory / "open").touch()
        assert holding.result() == (200, [5])


def test_a_client_that_leaves_a_chain(worker: TritonWorker) -> None:
    """The caller runs on; its call ends, and so does its own run."""
    directory = worker.serve(
        "chain_end",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(os.path.join(self.folder, "entered"), "w").close()
            wait_for(os.path.join(self.folder, "open"))
            return [respond(5) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    worker.serve("chain_start", calls("chain_end"))
    body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    host, _, port = worker.server.http_url.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v2/models/chain_start/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_for((directory / "entered").exists)
    (directory / "open").touch()
    wait_for(lambda: worker.in_flight() == 0)
    assert worker.infer("chain_start", 1) == (200, [5])


def test_a_client_that_leaves_a_stream_which_calls_a_stream(worker: TritonWorker) -> None:
    """The called model notices, too."""
    directory = worker.serve(
        "source",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            sender = requests[0].get_response_sender()
            while not sender.is_cancelled():
                sender.send(respond(1))
            open(os.path.join(self.folder, "noticed"), "w").close()
            sender.send(flags=FINAL)
        """,
        decoupled=True,
    )
    worker.serve(
        "relay",
        """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for response in call("source", 1).exec(decoupled=True):
                if sender.is_cancelled():
                    break
                sender.send(respond(2))
            sender.send(flags=FINAL)
        """,
        decoupled=True,
    )
    with grpc.insecure_channel(worker.server.grpc_url) as channel:
        responses = worker.responses(channel, "relay", [1])
        assert [next(responses) for _ in range(40)] == [[2]] * 40
        responses.close()
    wait_for((directory / "noticed").exists)


def test_a_caller_that_is_slow_holds_the_called_stream_back(worker: TritonWorker) -> None:
    """What it has not read is not made without bound."""
    directory = worker.serve("fountain", FOUNTAIN, decoupled=True)
    worker.serve(
        "sips",
        """
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            responses = call("fountain", 1).exec(decoupled=True)
            next(responses)
            wait_for(os.path.join(self.folder, "open"))
            del responses
            return [respond(1) for _ in requests]
        """,
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.infer, "sips", 1)
        sent = directory / "sent"
        wait_for(lambda: sent.exists() and sent.stat().st_size >= 64)
        for _ in range(30):
            assert worker.is_fine()
        assert sent.stat().st_size < 200
        (worker.repository / "sips" / "open").touch()
        assert waiting.result() == (200, [1])


@pytest.mark.parametrize("method", ["initialize", "finalize"])
def test_calls_outside_of_execute(worker: TritonWorker, method: str) -> None:
    """They work, or fail; they never wait for ever."""
    argument = ", args" if method == "initialize" else ""
    worker.serve(
        "early",
        f"""
        def {method}(self{argument}):
            response = call("good", 8).exec()
            pb_utils.Logger.log_info(f"asked in {method}: {{response.has_error()}}")

        def execute(self, requests):
            return [respond(1) for _ in requests]
        """,
    )
    assert worker.infer("early", 1) == (200, [1])
    assert worker.unload("early")[0] == 200
    wait_for(lambda: worker.logged(f"asked in {method}"))


def test_a_model_that_loads_and_unloads_another(worker: TritonWorker) -> None:
    worker.write("loaded_by_model")
    worker.serve(
        "manages",
        """
        def execute(self, requests):
            value = given(requests[0])
            if value == 1:
                pb_utils.load_model("loaded_by_model")
            elif value == 2:
                pb_utils.unload_model("loaded_by_model")
            elif value == 3:
                pb_utils.load_model("nobody")
            return [respond(int(pb_utils.is_model_ready("loaded_by_model"))) for _ in requests]
        """,
    )
    assert worker.infer("manages", 0) == (200, [0])
    assert worker.infer("manages", 1) == (200, [1])
    assert worker.infer("loaded_by_model", 6) == (200, [6])
    assert worker.infer("manages", 2) == (200, [0])
    status, text = worker.infer("manages", 3)
    assert status == 500
    assert "TritonModelException: Failed to load model: " in text
    assert "nobody" in text
    assert "contextlib" not in text


#: Without the text by which a worker knows a model that calls others.
_SHORT = """
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = ("good", "nobody")


class TritonPythonModel:
    def execute(self, requests):
        is_loop = threading.current_thread() is threading.main_thread()
        values = [BODY, is_loop]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.int32))]) for _ in requests]
"""


def serve_short(worker: TritonWorker, name: str, body: str) -> None:
    directory = worker.write(name)
    (directory / "1" / "model.py").write_text(_SHORT.replace("BODY", body))
    status, text = worker.load(name)
    assert status == 200, text


def test_readiness_on_the_thread_of_the_event_loop(worker: TritonWorker) -> None:
    """Short models run there after some requests. On other threads the question would make this one too long."""
    serve_short(worker, "asks_readiness", "*[not is_loop or pb_utils.is_model_ready(name) for name in NAMES]")
    seen = set()

    def asked() -> bool:
        status, values = worker.infer("asks_readiness", 1)
        assert status == 200, values
        seen.add(tuple(values))
        return (1, 0, 1) in seen

    wait_for(asked)
    assert seen <= {(1, 1, 0), (1, 0, 1)}


def test_a_model_that_loads_others_never_runs_on_the_thread_of_the_event_loop(worker: TritonWorker) -> None:
    serve_short(worker, "never_asks", "0")
    serve_short(worker, "loads_seldom", "0 and pb_utils.load_model")
    wait_for(lambda: worker.infer("never_asks", 1) == (200, [0, 1]))
    assert all(worker.infer("loads_seldom", 1) == (200, [0, 0]) for _ in range(50))


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("what", ["load", "unload"])
def test_a_model_that_loads_itself_while_it_loads(worker: TritonWorker, what: str, isolation: str) -> None:
    """The refusal is an error that the model may take."""
    worker.serve(
        "impatient",
        f"""
        def initialize(self, args):
            try:
                pb_utils.{what}_model("impatient")
            except pb_utils.TritonModelException as error:
                self.text = str(error)

        def execute(self, requests):
            pb_utils.Logger.log_info(f"{what} {isolation}: {{self.text}}")
            return [respond(1) for _ in requests]
        """,
        more=parameter("isolation", isolation),
    )
    assert worker.infer("impatient", 1) == (200, [1])
    wait_for(lambda: worker.logged(f"{what} {isolation}: "))
    (line,) = worker.logged(f"{what} {isolation}: ")
    assert f"Failed to {what} model: model 'impatient' cannot be loaded or unloaded while" in line["event"]


def test_models_that_load_each_other_while_they_load(worker: TritonWorker) -> None:
    """The one that is asked second is refused; the other then loads it."""
    loads = """
        def initialize(self, args):
            pb_utils.load_model("OTHER")

        def execute(self, requests):
            return [respond(1) for _ in requests]
    """
    worker.write("hen", loads.replace("OTHER", "egg"))
    worker.write("egg", loads.replace("OTHER", "hen"))
    status, text = worker.load("hen")
    assert status == 500
    assert "model 'hen', whose load waits for model 'egg', cannot be loaded or unloaded while model 'egg' loads" in text
    assert worker.is_fine()


def test_a_model_that_unloads_itself(worker: TritonWorker) -> None:
    """It waits for itself: the drain's limit ends that."""
    worker.serve(
        "leaves",
        """
        def execute(self, requests):
            pb_utils.unload_model("leaves")
            return [respond(1) for _ in requests]
        """,
        more=parameter("inline", "false"),
    )
    status, _ = worker.infer("leaves", 1)
    assert status in (200, 503)
    wait_for(lambda: worker.infer("leaves", 1)[0] in (404, 503))


def test_many_calls_at_once(worker: TritonWorker) -> None:
    """Every request calls three models; all are answered, with their own values."""
    worker.serve("leaf")
    worker.serve(
        "fan",
        """
        async def execute(self, requests):
            import asyncio

            answers = []
            for request in requests:
                value = given(request)
                called = await asyncio.gather(*(call("leaf", value + step).async_exec() for step in range(3)))
                answers.append(respond(*(int(each.output_tensors()[0].as_numpy()[0]) for each in called)))
            return answers
        """,
        more="instance_group [ { count: 2 kind: KIND_CPU } ]",
    )
    barrier = threading.Barrier(8)

    def ask(base: int) -> bool:
        barrier.wait()
        return all(
            worker.infer("fan", value) == (200, [value, value + 1, value + 2]) for value in range(base, base + 10)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(0, 800, 100)))
