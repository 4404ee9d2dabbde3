"""Answers of Triton python models in a real worker: whose memory they are in, when they come, and their parameters."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from triton_models import TritonWorker, message, parameter
from tritonclient.grpc import service_pb2_grpc

from watching import wait_for


def test_a_model_that_fills_one_buffer_for_every_response(worker: TritonWorker) -> None:
    """What was sent stays as it was."""
    worker.serve(
        "refills",
        """
        def initialize(self, args):
            self.buffer = np.zeros(20_000, np.int32)

        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for value in range(100):
                self.buffer[...] = value
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.buffer)]))
            sender.send(flags=FINAL)
        """,
        decoupled=True,
    )
    assert [set(values) for values in worker.stream("refills", 1)] == [{value} for value in range(100)]


def test_a_model_that_counts_in_its_input(worker: TritonWorker) -> None:
    """It writes to what it was given, and sends that again and again."""
    worker.serve(
        "counts_up",
        """
        def execute(self, requests):
            sender, array = requests[0].get_response_sender(), requests[0].inputs()[0].as_numpy()
            for _ in range(100):
                array += 1
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            sender.send(flags=FINAL)
        """,
        decoupled=True,
    )
    _, text = worker.post("/v2/models/counts_up/generate_stream", {"IN": [0, 0]})
    found = [json.loads(line.removeprefix("data: "))["OUT"] for line in text.splitlines() if line]
    assert found == [[value, value] for value in range(1, 101)]
    assert worker.stream("counts_up", 0) == [[value] for value in range(1, 101)]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_instances_on_gpus(worker: TritonWorker, isolation: str) -> None:
    """Each knows its GPU. No GPU is needed for that: what runs there is the model's choice."""
    worker.serve(
        "on_gpus",
        """
        def initialize(self, args):
            self.device = int(args["model_instance_device_id"])
            name, kind = args["model_instance_name"], args["model_instance_kind"]
            pb_utils.Logger.log_info(f"ISOLATION: {name} {kind} {self.device}")

        def execute(self, requests):
            return [respond(self.device) for _ in requests]
        """.replace("ISOLATION", isolation),
        more="instance_group [ { count: 2 kind: KIND_GPU gpus: [ 1, 2 ] } ]\n" + parameter("isolation", isolation),
    )
    # A process's lines come by a link of their own, each process's on a thread: perhaps after the load, in any order.
    wait_for(lambda: len(worker.logged(f"{isolation}: on_gpus")) >= 4)
    lines = [event["event"] for event in worker.logged(f"{isolation}: on_gpus")]
    expected = [f"{isolation}: on_gpus_0_{number} GPU {gpu}" for number in (0, 1) for gpu in (1, 2)]
    assert (sorted(lines) if isolation == "process" else lines) == expected
    assert worker.infer("on_gpus", 1)[1][0] in (1, 2)


def test_a_model_that_fills_one_buffer_for_every_run(worker: TritonWorker) -> None:
    worker.serve(
        "refills_each_run",
        """
        def initialize(self, args):
            self.buffer = np.zeros(20_000, np.int32)

        def execute(self, requests):
            answers = []
            for request in requests:
                self.buffer[...] = given(request)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.buffer)]))
                time.sleep(0)
            return answers
        """,
        more=parameter("inline", "false"),
    )
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda value: worker.infer("refills_each_run", value), range(60)))
    assert [set(values) for _, values in found] == [{value} for value in range(60)]


def test_a_request_that_is_kept_and_answered_later(worker: TritonWorker) -> None:
    """The thread asks for the sender when the run is long over."""
    worker.serve(
        "asks_later",
        """
        def execute(self, requests):
            for request in requests:
                threading.Timer(0.03, self.later, (request,)).start()

        def later(self, request):
            request.get_response_sender().send(respond(given(request)), FINAL)
        """,
    )
    assert worker.infer("asks_later", 8) == (200, [8])


def test_inputs_are_the_models_to_change(worker: TritonWorker) -> None:
    """Each transport: what one model writes, nobody else sees."""
    worker.serve(
        "overwrites",
        """
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                array += 1
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            return answers
        """,
    )
    worker.serve(
        "keeps_its_own",
        """
        def execute(self, requests):
            mine = np.array([1, 2], np.int32)
            tensor = pb_utils.Tensor("IN", mine)
            names = dict(requested_output_names=["OUT"], inputs=[tensor])
            theirs = pb_utils.InferenceRequest(model_name="overwrites", **names).exec().output_tensors()[0].as_numpy()
            echoed = pb_utils.InferenceRequest(model_name="passes_on", **names).exec().output_tensors()[0].as_numpy()
            echoed[...] = 0
            return [respond(*mine, *theirs) for _ in requests]
        """,
    )
    directory = worker.write("passes_on")
    (directory / "1" / "model.py").write_text(
        'class Model:\n    def infer(self, inputs):\n        return {"OUT": inputs["IN"]}\n'
    )
    assert worker.load("passes_on")[0] == 200
    assert worker.infer("overwrites", 4, 5) == (200, [5, 6])
    with grpc.insecure_channel(worker.server.grpc_url) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message("overwrites", 4, 5))
    assert np.frombuffer(answer.raw_output_contents[0], np.int32).tolist() == [5, 6]
    assert worker.infer("keeps_its_own", 1) == (200, [1, 2, 2, 3])


def test_a_caller_does_not_change_what_is_cached(worker: TritonWorker) -> None:
    worker.serve("cached", more="response_cache { enable: true }")
    worker.serve(
        "scribbles",
        """
        def execute(self, requests):
            array = call("cached", 1, 2).exec().output_tensors()[0].as_numpy()
            seen = array.tolist()
            array[...] = 9
            return [respond(*seen) for _ in requests]
        """,
    )
    for _ in range(3):
        assert worker.infer("scribbles", 1) == (200, [1, 2])
    assert worker.infer("cached", 1, 2) == (200, [1, 2])


_PARAMETERS = '{"number": -7, "text": "a ä", "flag": True}'
_EXPECTED = {"number": -7, "text": "a ä", "flag": True}


def values_of(parameters: object) -> dict[str, object]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in parameters.items()  # type: ignore[attr-defined]
    }


def test_parameters_of_responses(worker: TritonWorker) -> None:
    worker.serve(
        "annotates",
        f"""
        def execute(self, requests):
            answers = []
            for request in requests:
                tensors = [pb_utils.Tensor("OUT", np.zeros(1, np.int32))]
                answers.append(pb_utils.InferenceResponse(tensors, parameters={_PARAMETERS}))
            return answers
        """,
    )
    worker.serve(
        "reads_parameters",
        """
        def execute(self, requests):
            response = call("annotates", 1).exec()
            text = np.array([response.parameters().encode()], np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
        """,
        output="STRING",
    )
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}
    _, text = worker.post("/v2/models/annotates/infer", body)
    assert json.loads(text)["parameters"] == _EXPECTED
    with grpc.insecure_channel(worker.server.grpc_url) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message("annotates", 1))
    assert values_of(answer.parameters).items() >= _EXPECTED.items()
    assert json.loads(worker.infer("reads_parameters", 1)[1][0]) == _EXPECTED


def test_parameters_of_a_streams_responses(worker: TritonWorker) -> None:
    worker.serve(
        "annotates_each",
        """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for number in range(3):
                tensors = [pb_utils.Tensor("OUT", np.zeros(1, np.int32))]
                flags = FINAL if number == 2 else 0
                sender.send(pb_utils.InferenceResponse(tensors, parameters={"number": number}), flags)
        """,
        decoupled=True,
    )
    with grpc.insecure_channel(worker.server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        found = [
            values_of(response.infer_response.parameters)
            for response in stub.ModelStreamInfer(iter([message("annotates_each", 1)]), timeout=60)
        ]
    assert [each["number"] for each in found] == [0, 1, 2]
    assert [each["triton_final_response"] for each in found] == [False, False, True]


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_model_whose_tensors_are_reshaped(worker: TritonWorker, decoupled: bool) -> None:
    """The model sees the shape of ``reshape``, the caller the declared one, however the answer is sent."""
    directory = worker.write(
        "reshapes",
        """
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * array.shape[0])])
                if DECOUPLED:
                    request.get_response_sender().send(response, FINAL)
                answers.append(response)
            return None if DECOUPLED else answers
        """.replace("DECOUPLED", str(decoupled)),
        decoupled=decoupled,
    )
    config = directory / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ -1 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }"))
    status, text = worker.load("reshapes")
    assert status == 200, text
    found = worker.stream("reshapes", 1, 2, 3, 4)[0] if decoupled else worker.infer("reshapes", 1, 2, 3, 4)[1]
    assert found == [2, 4, 6, 8]


def test_a_model_is_not_run_before_its_first_request(worker: TritonWorker) -> None:
    worker.serve(
        "counts",
        """
        def initialize(self, args):
            self.runs = 0

        def execute(self, requests):
            self.runs += len(requests)
            return [respond(self.runs) for _ in requests]
        """,
    )
    assert [worker.infer("counts", 1)[1] for _ in range(3)] == [[1], [2], [3]]


def test_samples_of_model_warmup_reach_the_model(worker: TritonWorker) -> None:
    worker.serve(
        "warmed",
        """
        def initialize(self, args):
            self.seen = []

        def execute(self, requests):
            self.seen += [request.inputs()[0].as_numpy().tolist() for request in requests]
            return [respond(len(self.seen)) for _ in requests]
        """,
        more='model_warmup [ { name: "zeros" inputs { key: "IN" value'
        " { data_type: TYPE_INT32 dims: [ 3 ] zero_data: true } } } ]",
    )
    status, (runs,) = worker.infer("warmed", 1)
    assert status == 200
    assert runs > 1


def test_a_model_that_forgets_to_return_its_responses(worker: TritonWorker) -> None:
    """The caller is told, instead of waiting for ever."""
    worker.serve(
        "forgets",
        """
        def execute(self, requests):
            pass
        """,
    )
    status, said = worker.infer("forgets", 1)
    assert status == 500
    assert "execute returned None, and the response sender of the request was not used" in str(said)


_TYPES = ("int64", "float64", "int32", "object", "int64", "float32", "object", "float64")


@pytest.mark.parametrize("transport", ["http", "grpc", "stream"])
def test_a_model_whose_output_has_another_type_each_time(worker: TritonWorker, transport: str) -> None:
    """Triton passes on what a model returns, whatever the configuration declares."""
    worker.serve(
        "changes_types",
        f"""
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            array = np.array([1, 2, 3]).astype({_TYPES}[given(request)])
            if array.dtype == object:
                array = np.array([b"one", b"", b"three"], object)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
        """,
    )
    for position, name in enumerate(_TYPES):
        found = _output(worker, transport, position)
        expected = [b"one", b"", b"three"] if name == "object" else [1, 2, 3]
        assert (str(found.dtype), found.tolist()) == (name, expected)


def _output(worker: TritonWorker, transport: str, value: int) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    array = np.array([value], np.int32)
    if transport == "http":
        with tritonclient.http.InferenceServerClient(worker.server.http_url) as client:
            tensor = tritonclient.http.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(array)
            return client.infer("changes_types", [tensor]).as_numpy("OUT")
    with tritonclient.grpc.InferenceServerClient(worker.server.grpc_url) as client:
        tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
        tensor.set_data_from_numpy(array)
        if transport == "grpc":
            return client.infer("changes_types", [tensor]).as_numpy("OUT")
        answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("changes_types", [tensor])
        result, error = answers.get(timeout=30)
        assert error is None
        return result.as_numpy("OUT")
