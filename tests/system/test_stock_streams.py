"""ModelStreamInfer by the stock gRPC clients: ordinary, decoupled, sequences; errors, cancels, slow readers."""

from __future__ import annotations

import http.client
import queue
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from stock_clients import Array, StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from sample_models import HELD, write_models
from server_process import ServerProcess, StartServer
from watching import connections, load_now, release_one, release_until, wait_for

ONES = np.ones((1, 16), np.float32)


class Stream:
    """A stream of the synchronous client, and what came back on it in order."""

    def __init__(self, server: ServerProcess, **keywords: Any) -> None:
        self.raw = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self._answers: queue.Queue[Any] = queue.Queue()
        self.raw.start_stream(lambda result, error: self._answers.put(error or result), **keywords)

    def send(self, model: str, inputs: dict[str, Array], **keywords: Any) -> None:
        sent = []
        for name, array in inputs.items():
            each = tritonclient.grpc.InferInput(
                name, list(array.shape), tritonclient.utils.np_to_triton_dtype(array.dtype)
            )
            each.set_data_from_numpy(array)
            sent.append(each)
        self.raw.async_stream_infer(model, sent, **keywords)

    def next(self) -> Any:
        return self._answers.get(timeout=60)

    def close(self) -> list[Any]:
        """Half-closes, waits for the end, and gives what came meanwhile."""
        self.raw.stop_stream()
        self.raw.close()
        left = []
        while not self._answers.empty():
            left.append(self._answers.get())
        return left


@pytest.fixture
def stream(sample_server: ServerProcess) -> Iterator[Stream]:
    made = Stream(sample_server)
    yield made
    made.raw.close()


def is_final(answer: Any) -> bool | None:
    parameters = answer.get_response().parameters
    return parameters["triton_final_response"].bool_param if "triton_final_response" in parameters else None


class TestOrdinaryModels:
    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_requests_of_any_size_keep_their_order(
        self, sample_server: ServerProcess, algorithm: str
    ) -> None:
        """A large one is decompressed beside the loop: small ones behind it wait, and a half-close does too."""
        stream = Stream(sample_server, compression_algorithm=algorithm)
        sizes = [10, 100_000, 20, 30, 200_000, 40]
        for size in sizes:
            stream.send("identity_int64", {"IN": np.full(size, size)}, request_id=str(size))
        answers = [stream.next() for _ in sizes[:3]]
        answers += stream.close()
        assert [answer.get_response().id for answer in answers] == [str(size) for size in sizes]
        assert all((answer.as_numpy("OUT") == int(answer.get_response().id)).all() for answer in answers)

    def test_answers_come_in_the_order_asked(self, stream: Stream) -> None:
        # The first takes longest, and another model answers meanwhile.
        stream.send("slow", {"MILLISECONDS": np.array([[100]], np.int32)}, request_id="first")
        for number in range(20):
            stream.send("add_sub", {"INPUT0": ONES * number, "INPUT1": ONES}, request_id=str(number))
        ids = [stream.next().get_response().id for _ in range(21)]
        assert ids == ["first", *map(str, range(20))]
        assert stream.close() == []

    def test_a_half_close_lets_work_finish(self, stream: Stream) -> None:
        for number in range(3):
            stream.send("slow", {"MILLISECONDS": np.array([[30]], np.int32)}, request_id=str(number))
        assert [answer.get_response().id for answer in stream.close()] == ["0", "1", "2"]

    def test_the_final_response_is_marked_if_asked(self, stream: Stream) -> None:
        stream.send("add_sub", {"INPUT0": ONES, "INPUT1": ONES}, enable_empty_final_response=True)
        answer = stream.next()
        assert is_final(answer) is True
        assert np.array_equal(answer.as_numpy("OUTPUT0"), ONES * 2)
        assert stream.close() == []


class TestErrors:
    def test_stays_in_the_stream_with_its_id(self, sample_server: ServerProcess) -> None:
        def requests() -> Iterator[Any]:
            yield identity_request("nobody", "lost", np.ones(1, np.float32))
            yield identity_request("identity_fp32", "fine", np.ones(1, np.float32))
            yield identity_request("identity_fp32", "wrong", np.ones(1, np.float64))

        with grpc.insecure_channel(sample_server.grpc_url) as channel:
            answers = list(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), timeout=60))
        assert [answer.infer_response.id for answer in answers] == ["lost", "fine", "wrong"]
        assert answers[0].error_message == "Request for unknown model: 'nobody' is not found"
        assert answers[1].error_message == ""
        assert "FP64" in answers[2].error_message

    def test_the_stock_client_sees_it_and_goes_on(self, stream: Stream) -> None:
        stream.send("nobody", {"IN": ONES})
        error = stream.next()
        assert isinstance(error, InferenceServerException)
        assert "'nobody' is not found" in error.message()
        stream.send("add_sub", {"INPUT0": ONES, "INPUT1": ONES})
        assert np.array_equal(stream.next().as_numpy("OUTPUT0"), ONES * 2)

    def test_of_a_decoupled_model_half_way(self, stream: Stream) -> None:
        stream.send("repeat", {"IN": np.array([5, -1, 6], np.int32)})
        assert stream.next().as_numpy("OUT").tolist() == [5]
        assert "element 1 is negative" in stream.next().message()
        stream.send("repeat", {"IN": np.array([7], np.int32)})
        assert stream.next().as_numpy("OUT").tolist() == [7]
        assert stream.close() == []


class TestDecoupledModels:
    @pytest.mark.parametrize("model", ["repeat", "repeat_async"])
    @pytest.mark.parametrize("count", [0, 1, 5, 100])
    def test_any_number_of_answers(self, stream: Stream, model: str, count: int) -> None:
        stream.send(model, {"IN": np.arange(count, dtype=np.int32)}, request_id="n", enable_empty_final_response=True)
        answers = [stream.next() for _ in range(count + 1)]
        assert [answer.as_numpy("OUT")[0] for answer in answers[:-1]] == list(range(count))
        assert [is_final(answer) for answer in answers] == [False] * count + [True]
        assert {answer.get_response().id for answer in answers} == {"n"}
        assert list(answers[-1].get_response().outputs) == []
        assert stream.close() == []

    def test_no_empty_final_unless_asked(self, stream: Stream) -> None:
        stream.send("repeat", {"IN": np.arange(3, dtype=np.int32)})
        stream.send("repeat", {"IN": np.arange(0, dtype=np.int32)})
        answers = stream.close()
        assert [answer.as_numpy("OUT")[0] for answer in answers] == [0, 1, 2]

    def test_many_requests_at_once(self, stream: Stream) -> None:
        for number in range(8):
            values = np.arange(number * 10, number * 10 + 10, dtype=np.int32)
            stream.send("repeat_async", {"IN": values, "DELAY": np.array([2], np.int32)}, request_id=str(number))
        answers = stream.close()
        assert len(answers) == 80
        for number in range(8):
            mine = [answer.as_numpy("OUT")[0] for answer in answers if answer.get_response().id == str(number)]
            assert mine == list(range(number * 10, number * 10 + 10))

    def test_only_the_outputs_asked_for(self, stream: Stream) -> None:
        wanted = [tritonclient.grpc.InferRequestedOutput("INDEX")]
        stream.send("repeat", {"IN": np.array([9], np.int32)}, outputs=wanted)
        answer = stream.next()
        assert [output.name for output in answer.get_response().outputs] == ["INDEX"]

    @pytest.mark.parametrize("model", ["burst", "burst_async"])
    def test_a_slow_reader_gets_everything(self, sample_server: ServerProcess, model: str) -> None:
        """Several requests of one stream wait for the reader at once; each has to go on when it reads again."""
        before = sample_server.resident_bytes()
        counts = dict.fromkeys("abc", 0)
        with grpc.insecure_channel(sample_server.grpc_url) as channel:
            answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
                bursts(model, "a", "b", "c"), timeout=60
            )
            answer = next(answers)
            # While nobody reads, 179 MiB more must not pile up in the server: 16 responses of each request may.
            time.sleep(0.3)
            grown = sample_server.resident_bytes() - before
            while answer is not None:
                message = answer.infer_response
                assert message.raw_output_contents[0] == bytes([counts[message.id]]) * (1 << 20)
                counts[message.id] += 1
                answer = next(answers, None)
        assert counts == dict.fromkeys("abc", 60)
        assert grown < 110 << 20, f"{grown >> 20} MiB"


class TestSequencesOverAStream:
    @pytest.mark.parametrize("model", ["accumulate", "accumulate_oldest"])
    def test_two_interleaved(self, stream: Stream, model: str) -> None:
        for step in range(5):
            for sequence_id in (901, "nine-hundred-two"):
                stream.send(
                    model,
                    {"IN": np.array([[step + 1]], np.int32)},
                    request_id=f"{sequence_id}/{step}",
                    sequence_id=sequence_id,
                    sequence_start=step == 0,
                    sequence_end=step == 4,
                )
        sums = {answer.get_response().id: answer.as_numpy("SUM")[0, 0] for answer in stream.close()}
        assert [sums[f"901/{step}"] for step in range(5)] == [1, 3, 6, 10, 15]
        assert [sums[f"nine-hundred-two/{step}"] for step in range(5)] == [1, 3, 6, 10, 15]


class TestAio:
    def test_stream_infer(self, sample_server: ServerProcess) -> None:
        client = StockClient("grpc.aio", sample_server)
        found: list[Any] = []

        async def run() -> None:
            async def inputs() -> AsyncIterator[dict[str, Any]]:
                for values in ([1, 2], [], [3]):
                    sent = client.input("IN", np.array(values, np.int32))
                    yield {"model_name": "repeat", "inputs": [sent]}

            async for result, error in client.raw.stream_infer(inputs()):
                assert error is None
                found.append(int(result.as_numpy("OUT")[0]))

        client.call_function(run)
        client.close()
        assert found == [1, 2, 3]


class TestCancel:
    """What a client gives up before it ran is never run."""

    def test_a_stream(self, sample_server: ServerProcess, sample_repository: Path, watcher: StockClient) -> None:
        before, connected = watcher.count("slow"), connections(sample_server)
        stream = Stream(sample_server)
        for _ in range(6):
            stream.send("slow", {"MILLISECONDS": np.array([[HELD]], np.int32)})
        release_one(sample_repository)
        stream.next()
        wait_for(lambda: load_now(sample_server)["queue_depth"] == 4)
        stream.raw.stop_stream(cancel_requests=True)
        stream.raw.close()
        wait_for(lambda: connections(sample_server) <= connected)
        release_one(sample_repository)
        # One was answered, the next was under way; the other four never ran.
        assert executed_since(before, watcher) == 2

    def test_a_unary_call(self, sample_server: ServerProcess, sample_repository: Path, watcher: StockClient) -> None:
        before, connected = watcher.count("slow"), connections(sample_server)
        answers: queue.Queue[Any] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(sample_server.grpc_url) as raw:
            calls = [
                raw.async_infer("slow", milliseconds(HELD), callback=lambda result, error: answers.put(error or result))
                for _ in range(4)
            ]
            wait_for(lambda: load_now(sample_server)["queue_depth"] == 3)
            for call in calls:
                call.cancel()
            errors = [answers.get(timeout=60) for _ in range(4)]
            assert [error.status() for error in errors] == ["StatusCode.CANCELLED"] * 4
        wait_for(lambda: connections(sample_server) <= connected)
        release_until(lambda: load_now(sample_server)["in_flight"] == 0, sample_repository)
        # The one that was on its way to compute may have been caught there; those in the queue never run.
        assert executed_since(before, watcher) <= 1

    def test_a_client_timeout(
        self, sample_server: ServerProcess, sample_repository: Path, watcher: StockClient
    ) -> None:
        before = watcher.count("slow")
        answers: queue.Queue[Any] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(sample_server.grpc_url) as raw:
            # Kept, since a call that nobody holds is cancelled.
            calls = [
                raw.async_infer("slow", milliseconds(HELD), callback=lambda result, error: answers.put(result))
                for _ in range(2)
            ]
            wait_for(lambda: load_now(sample_server)["queue_depth"] == 1)
            with pytest.raises(InferenceServerException) as caught:
                raw.infer("slow", milliseconds(HELD), client_timeout=0.1)
            assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
            for _ in calls:
                release_one(sample_repository)
                assert answers.get(timeout=60).as_numpy("SLEPT").item() == HELD
            assert executed_since(before, watcher) == 2

    def test_an_http_client_that_goes_away(
        self, sample_server: ServerProcess, sample_repository: Path, watcher: StockClient
    ) -> None:
        before = watcher.count("slow")
        body = b'{"inputs":[{"name":"MILLISECONDS","datatype":"INT32","shape":[1,1],"data":[%d]}]}' % HELD
        connections = []
        for _ in range(3):
            connection = http.client.HTTPConnection(sample_server.http_url)
            connection.request("POST", "/v2/models/slow/infer", body)
            connections.append(connection)
        wait_for(lambda: load_now(sample_server)["queue_depth"] == 2)
        for connection in connections:
            connection.close()
        load_now(sample_server)  # behind the ends of those connections
        release_until(lambda: load_now(sample_server)["in_flight"] == 0, sample_repository)
        # The one that was on its way to compute may have been caught there; those in the queue never run.
        assert executed_since(before, watcher) <= 1

    def test_a_reader_that_leaves_while_a_model_waits_for_it(self, sample_server: ServerProcess) -> None:
        """The model is told, whatever it waits for: nothing stays in flight."""
        with grpc.insecure_channel(sample_server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = [stub.ModelStreamInfer(bursts(model, "a", "b"), timeout=60) for model in ("burst", "burst_async")]
            for call in calls:
                next(call)
            for call in calls:
                call.cancel()
            wait_for(lambda: load_now(sample_server)["in_flight"] == 0)


@pytest.fixture
def watcher(sample_server: ServerProcess) -> Iterator[StockClient]:
    made = StockClient("http", sample_server)
    yield made
    made.close()


def executed_since(before: dict[str, Any], watcher: StockClient) -> int:
    """Runs of the slow model since, once it has done all it was asked before this."""
    watcher.infer("slow", {"MILLISECONDS": np.array([[1]], np.int32)})
    return int(watcher.count("slow")["executions"] - before["executions"] - 1)


def milliseconds(number: int) -> list[Any]:
    made = tritonclient.grpc.InferInput("MILLISECONDS", [1, 1], "INT32")
    made.set_data_from_numpy(np.array([[number]], np.int32))
    return [made]


def bursts(model: str, *ids: str) -> Iterator[Any]:
    """Requests of 60 responses of one MiB each."""
    for request_id in ids:
        request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
        request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        request.raw_input_contents.append(np.array([60], np.int32).tobytes())
        yield request


def identity_request(model: str, request_id: str, values: Array) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    datatype = tritonclient.utils.np_to_triton_dtype(values.dtype)
    request.inputs.add(name="IN", datatype=datatype, shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request


def test_a_burst_of_requests_is_taken_a_part_at_a_time(tmp_path: Path, server_factory: StartServer) -> None:
    """A window lets forty thousand small requests in at once: 256 of them are in progress, the others wait unread."""
    repository = write_models(tmp_path / "models", "identity_int32", "slow")
    with server_factory(repository) as server, grpc.insecure_channel(server.grpc_url) as channel:
        request = service_pb2.ModelInferRequest(model_name="slow")
        request.inputs.add(name="MILLISECONDS", datatype="INT32", shape=[1, 1])
        request.raw_input_contents.append(np.array([[50]], np.int32).tobytes())
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request] * 5000), timeout=60)
        depths = []
        for _ in range(20):
            assert not next(call).error_message
            depths.append(load_now(server)["queue_depth"])
        call.cancel()
        assert 100 < max(depths) <= 256
        wait_for(lambda: load_now(server)["queue_depth"] == 0)
