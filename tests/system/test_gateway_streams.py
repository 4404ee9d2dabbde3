"""Streams and sequences through a gateway: one worker each, from the first message to the last."""

from __future__ import annotations

import itertools
import queue
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from stock_clients import KINDS, Array, StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway_process import Fleet, GatewayProcess, StartGateway
from watching import load_now, wait_for

ONES = np.ones((1, 16), np.float32)
MODELS = ("accumulate", "accumulate_oldest", "accumulate_state")

_numbers = itertools.count(100)


class Stream:
    """A stream of the synchronous client, and what came back on it in order."""

    def __init__(self, gateway: GatewayProcess, **keywords: Any) -> None:
        self.raw = tritonclient.grpc.InferenceServerClient(gateway.grpc_url)
        self._answers: queue.Queue[Any] = queue.Queue()
        self.raw.start_stream(lambda result, error: self._answers.put(error or result), **keywords)

    def send(self, model: str, inputs: dict[str, Array], **keywords: Any) -> None:
        sent = []
        for name, array in inputs.items():
            datatype = tritonclient.utils.np_to_triton_dtype(array.dtype)
            each = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
            each.set_data_from_numpy(array)
            sent.append(each)
        self.raw.async_stream_infer(model, sent, **keywords)

    def next(self) -> Any:
        return self._answers.get(timeout=60)


@pytest.fixture
def stream(fleet: Fleet) -> Iterator[Stream]:
    made = Stream(fleet.gateway)
    yield made
    made.raw.stop_stream()
    made.raw.close()


class TestStreams:
    def test_many_answers_to_one_request(self, stream: Stream) -> None:
        stream.send("repeat", {"IN": np.arange(50, dtype=np.int32)}, request_id="r")
        answers = [stream.next() for _ in range(50)]
        assert [int(answer.as_numpy("OUT")[0]) for answer in answers] == list(range(50))
        assert {answer.get_response().id for answer in answers} == {"r"}

    def test_models_of_all_kinds_on_one_stream(self, stream: Stream) -> None:
        for number in range(10):
            stream.send("add_sub", {"INPUT0": ONES * number, "INPUT1": ONES}, request_id=str(number))
        assert [stream.next().get_response().id for _ in range(10)] == list(map(str, range(10)))
        for version, added in (("1", 1.0), ("2", 2.0), ("", 2.0)):
            stream.send("versions", {"X": np.zeros((1, 4), np.float32)}, model_version=version)
            assert stream.next().as_numpy("Y").tolist() == [[added] * 4]

    def test_errors_stay_in_the_stream(self, stream: Stream) -> None:
        stream.send("nobody", {"IN": ONES})
        error = stream.next()
        assert isinstance(error, InferenceServerException)
        assert error.message() == "Request for unknown model: 'nobody' is not found"
        stream.send("add_sub", {"INPUT0": ONES, "INPUT1": ONES})
        assert np.array_equal(stream.next().as_numpy("OUTPUT0"), ONES * 2)
        stream.send("repeat", {"IN": np.array([5, -1], np.int32)})
        assert stream.next().as_numpy("OUT").tolist() == [5]
        assert "element 1 is negative" in stream.next().message()

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_messages(self, fleet: Fleet, algorithm: str) -> None:
        """The version of the first message can be read and pinned all the same."""
        stream = Stream(fleet.gateway, compression_algorithm=algorithm)
        stream.send("identity_int64", {"IN": np.arange(5000)})
        assert stream.next().as_numpy("OUT").tolist() == list(range(5000))
        stream.raw.stop_stream()
        stream.raw.close()

    def test_compressed_messages_of_any_size_keep_their_order(self, fleet: Fleet) -> None:
        """Large ones are decompressed beside the loop: what comes behind them waits, the end included."""
        stream = Stream(fleet.gateway, compression_algorithm="gzip")
        sizes = [10, 100_000, 20, 30, 200_000, 40]
        for size in sizes:
            stream.send("identity_int64", {"IN": np.full(size, size)}, request_id=str(size))
        # Waits for all answers.
        stream.raw.stop_stream()
        answers = [stream.next() for _ in sizes]
        stream.raw.close()
        assert [answer.get_response().id for answer in answers] == [str(size) for size in sizes]
        assert all((answer.as_numpy("OUT") == int(answer.get_response().id)).all() for answer in answers)

    def test_the_aio_client(self, fleet: Fleet) -> None:
        client = StockClient("grpc.aio", fleet.gateway)
        found: list[int] = []

        async def run() -> None:
            async def inputs() -> AsyncIterator[dict[str, Any]]:
                for values in ([1, 2], [], [3]):
                    yield {"model_name": "repeat", "inputs": [client.input("IN", np.array(values, np.int32))]}

            async for result, error in client.raw.stream_infer(inputs()):
                assert error is None
                found.append(int(result.as_numpy("OUT")[0]))

        client.call_function(run)
        client.close()
        assert found == [1, 2, 3]

    def test_an_empty_stream_ends_well(self, fleet: Fleet) -> None:
        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert list(stub.ModelStreamInfer(iter(()), timeout=60)) == []

    def test_a_cancelled_stream_is_cancelled_at_the_worker(self, fleet: Fleet) -> None:
        def requests() -> Iterator[Any]:
            request = service_pb2.ModelInferRequest(model_name="burst")
            request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
            request.raw_input_contents.append(np.array([200], np.int32).tobytes())
            yield request

        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), timeout=60)
            next(call)
            wait_for(lambda: max(load_now(worker)["in_flight"] for worker in fleet.workers) == 1)
            call.cancel()
            wait_for(lambda: all(load_now(worker)["in_flight"] == 0 for worker in fleet.workers))

    def test_words_as_they_are_made(self, fleet: Fleet) -> None:
        """generate_stream: server-sent events over HTTP."""
        body = b'{"text_input": "one two three", "parameters": {"max_words": 2}}'
        url = f"http://{fleet.gateway.http_url}/v2/models/words/generate_stream"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            lines = [line for line in answer.read().split(b"\n") if line.startswith(b"data:")]
        assert [b"one" in lines[0], b"two" in lines[1], len(lines)] == [True, True, 2]


def step(client: StockClient, model: str, sequence_id: int | str, value: int, **flags: Any) -> float:
    dtype = np.float32 if model == "accumulate_state" else np.int32
    result = client.infer(model, {"IN": np.array([[value]], dtype)}, sequence_id=sequence_id, **flags)
    return float(result.as_numpy("SUM")[0, 0])


def run_sequences(client: StockClient, model: str, form: Any) -> None:
    """Interleaved: each keeps its own sum only if all of its steps meet the same worker.

    Three: no more than a worker has slots for, wherever they go; and odd, so that taking turns would break them.
    """
    ids = [form(next(_numbers)) for _ in range(3)]
    sums = dict.fromkeys(ids, 0)
    for number in range(4):
        for factor, sequence_id in enumerate(ids, 1):
            sums[sequence_id] += factor * (number + 1)
            flags = {"sequence_start": number == 0, "sequence_end": number == 3}
            assert step(client, model, sequence_id, factor * (number + 1), **flags) == sums[sequence_id]


class TestSequences:
    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("form", [int, str])
    def test_stay_on_one_worker(self, gateway_client: StockClient, model: str, form: Any) -> None:
        """By the default policy."""
        run_sequences(gateway_client, model, form)

    @pytest.mark.parametrize("policy", ["consistent_hash", "round_robin"])
    def test_by_every_policy(self, fleet: Fleet, gateway_factory: StartGateway, policy: str) -> None:
        with gateway_factory(fleet.workers, "--policy", policy) as gateway:
            for kind in KINDS[:2]:
                with closing(StockClient(kind, gateway)) as client:
                    run_sequences(client, "accumulate_oldest", int)

    def test_two_gateways_find_the_same_worker(self, fleet: Fleet, gateway_factory: StartGateway) -> None:
        """Every request of a sequence comes through another gateway than the one before."""
        with gateway_factory(list(reversed(fleet.workers))) as second:
            clients = [StockClient("http", fleet.gateway), StockClient("grpc", second)]
            for _ in range(12):
                sequence_id = next(_numbers)
                for number in range(4):
                    flags = {"sequence_start": number == 0, "sequence_end": number == 3}
                    client = clients[(sequence_id + number) % 2]
                    assert step(client, "accumulate", sequence_id, 1, **flags) == number + 1
            for client in clients:
                client.close()

    def test_a_sequence_may_start_on_one_protocol_and_go_on_by_the_other(self, fleet: Fleet) -> None:
        sequence_id = next(_numbers)
        for number, kind in enumerate(KINDS):
            with closing(StockClient(kind, fleet.gateway)) as client:
                flags = {"sequence_start": number == 0, "sequence_end": number == 3}
                assert step(client, "accumulate", sequence_id, 1, **flags) == number + 1

    @pytest.mark.parametrize("kind", ["http", "http.aio"])
    def test_a_long_head_hides_no_sequence(self, fleet: Fleet, kind: str) -> None:
        """tritonclient writes parameters last: behind a JSON tensor they are far from the start."""
        sequence_id = next(_numbers)
        with closing(StockClient(kind, fleet.gateway)) as client:
            for number in range(6):
                flags = {"sequence_start": number == 0, "sequence_end": number == 5}
                sent = client.input("IN", np.array([[1]], np.int32), binary=False)
                long_id = "x" * 9000
                result = client.call(
                    "infer", "accumulate", [sent], request_id=long_id, sequence_id=sequence_id, **flags
                )
                assert result.as_numpy("SUM").tolist() == [[number + 1]]

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_nor_does_compression(self, fleet: Fleet, algorithm: str) -> None:
        sequence_id = next(_numbers)
        with closing(StockClient("http", fleet.gateway)) as client:
            for number in range(6):
                result = client.infer(
                    "accumulate",
                    {"IN": np.array([[1]], np.int32)},
                    sequence_id=sequence_id,
                    sequence_start=number == 0,
                    sequence_end=number == 5,
                    request_compression_algorithm=algorithm,
                )
                assert result.as_numpy("SUM").tolist() == [[number + 1]]

    def test_on_streams(self, fleet: Fleet) -> None:
        """Two streams, and unary calls between: the sequence's id decides, not the stream."""
        streams = [Stream(fleet.gateway) for _ in range(2)]
        sequence_id = next(_numbers)
        for number in range(6):
            stream = streams[number % 2]
            flags = {"sequence_start": number == 0, "sequence_end": number == 5}
            stream.send("accumulate", {"IN": np.array([[1]], np.int32)}, sequence_id=sequence_id, **flags)
            assert stream.next().as_numpy("SUM").tolist() == [[number + 1]]
        for stream in streams:
            stream.raw.stop_stream()
            stream.raw.close()
