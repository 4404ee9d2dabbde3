"""Deadlines, priorities and full queues, as stock clients ask for them and are told."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from sample_models import HELD
from server_process import ServerProcess
from watching import load_now, release_one, release_until, wait_for


def sleep_for(number: int) -> dict[str, Any]:
    return {"MILLISECONDS": np.array([[number]], np.int32)}


class Busy:
    """Keeps a model of one instance busy: the first request runs until it is released, the others queue."""

    def __init__(self, server: ServerProcess, repository: Path) -> None:
        self._server = server
        self._repository = repository
        self._models: set[str] = set()
        self._clients: list[Any] = []
        self._threads: list[threading.Thread] = []
        self.answers: list[Any] = []
        # What callers of earlier tests gave up is counted until it has ended.
        wait_for(lambda: not load_now(server)["in_flight"])

    def send(self, model: str, number: int, **keywords: Any) -> None:
        client = StockClient("http", self._server)
        self._clients.append(client)
        self._models.add(model)
        sent = len(self._threads)

        def run() -> None:
            try:
                result = client.infer(model, sleep_for(number), **keywords)
            except InferenceServerException as error:
                self.answers.append(error)
            else:
                self.answers.append(int(result.as_numpy("SLEPT")[0, 0]))

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        # One sent before may be over by now: it is counted among the answers then, a moment later.
        wait_for(lambda: load_now(self._server)["in_flight"] + len(self.answers) > sent)

    def release(self, model: str) -> None:
        """Ends one run, and returns when its caller has the answer."""
        answered = len(self.answers)
        release_one(self._repository, model)
        wait_for(lambda: len(self.answers) > answered)

    def end(self) -> None:
        for model in self._models:
            release_until(lambda: len(self.answers) == len(self._threads), self._repository, model)
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()


@pytest.fixture
def busy(sample_server: ServerProcess, sample_repository: Path) -> Iterator[Busy]:
    made = Busy(sample_server, sample_repository)
    yield made
    made.end()


class TestDeadlines:
    def test_the_timeout_parameter(self, client: StockClient, busy: Busy) -> None:
        busy.send("slow", HELD)
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", sleep_for(1), timeout=30_000)
        assert "Request timeout expired" in caught.value.message()
        assert "slow" in caught.value.message()
        assert caught.value.status() == ("504" if client.is_http else "StatusCode.DEADLINE_EXCEEDED")

    def test_the_header(self, http_client: StockClient, busy: Busy) -> None:
        busy.send("slow", HELD)
        with pytest.raises(InferenceServerException, match="Request timeout expired") as caught:
            http_client.infer("slow", sleep_for(1), headers={"x-request-timeout-ms": "30"})
        assert caught.value.status() == "504"

    def test_the_grpc_timeout(self, grpc_client: StockClient, busy: Busy) -> None:
        busy.send("slow", HELD)
        with pytest.raises(InferenceServerException) as caught:
            grpc_client.infer("slow", sleep_for(1), client_timeout=0.03)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"

    def test_enough_time_is_enough(self, client: StockClient) -> None:
        result = client.infer("slow", sleep_for(5), timeout=60_000_000)
        assert result.as_numpy("SLEPT").tolist() == [[5]]

    def test_time_that_cannot_suffice_is_refused_at_once(self, client: StockClient) -> None:
        before = client.count("slow")
        with pytest.raises(InferenceServerException, match="Request timeout expired"):
            client.infer("slow", sleep_for(1), timeout=100)
        assert client.count("slow")["executions"] == before["executions"]

    @pytest.mark.parametrize("value", ["soon", "-5", "1e99", ""])
    def test_a_header_that_is_no_time(self, http_client: StockClient, value: str) -> None:
        with pytest.raises(InferenceServerException, match="x-request-timeout-ms") as caught:
            http_client.infer("slow", sleep_for(1), headers={"x-request-timeout-ms": value})
        assert caught.value.status() == "400"


def test_a_higher_priority_goes_first(busy: Busy) -> None:
    busy.send("slow_priorities", HELD)
    busy.send("slow_priorities", HELD + 1, priority=2)
    busy.send("slow_priorities", HELD + 2)  # the default is 2
    busy.send("slow_priorities", HELD + 3, priority=1)
    for _ in range(4):
        busy.release("slow_priorities")
    assert busy.answers == [HELD, HELD + 3, HELD + 1, HELD + 2]


def test_a_model_that_is_slow_now_and_then_holds_nobody_up_twice(sample_server: ServerProcess, busy: Busy) -> None:
    """Fast models run between two turns of the loop; one that was not fast after all gets a thread of its own."""
    client = StockClient("http", sample_server)
    client.infer("sometimes_slow", sleep_for(50))
    for _ in range(3):
        busy.send("sometimes_slow", HELD)
    for _ in range(10):
        client.infer("identity_int32", {"IN": np.array([1], np.int32)})
    # Nobody had to wait for even the first of them.
    assert busy.answers == []
    client.close()


def test_a_full_queue(client: StockClient, busy: Busy) -> None:
    for _ in range(3):
        busy.send("slow_short_queue", HELD)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("slow_short_queue", sleep_for(1))
    assert "Exceeds maximum queue size" in caught.value.message()
    assert "slow_short_queue" in caught.value.message()
    assert caught.value.status() == ("429" if client.is_http else "StatusCode.RESOURCE_EXHAUSTED")
    for _ in range(3):
        busy.release("slow_short_queue")
    assert busy.answers == [HELD] * 3


@pytest.mark.parametrize(("name", "value"), [("priority", -1), ("timeout", "soon"), ("sequence_start", 1)])
def test_a_parameter_of_the_wrong_kind(sample_server: ServerProcess, name: str, value: Any) -> None:
    body = {
        "inputs": [{"name": "MILLISECONDS", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
        "parameters": {name: value},
    }
    connection = http.client.HTTPConnection(sample_server.http_url)
    connection.request("POST", "/v2/models/slow/infer", json.dumps(body))
    answer = connection.getresponse()
    message = json.loads(answer.read())["error"]
    connection.close()
    assert answer.status == 400
    assert name in message
    assert repr(value) in message or str(value) in message


def test_an_http_client_that_times_out_is_no_bother(sample_server: ServerProcess, sample_repository: Path) -> None:
    watcher = StockClient("http", sample_server)
    before = watcher.count("slow")
    with tritonclient.http.InferenceServerClient(sample_server.http_url, network_timeout=3) as raw:
        each = tritonclient.http.InferInput("MILLISECONDS", [1, 1], "INT32")
        each.set_data_from_numpy(np.array([[HELD]], np.int32))
        with pytest.raises(Exception, match="timed out"):
            raw.infer("slow", [each])
    release_one(sample_repository)
    assert watcher.infer("slow", sleep_for(1)).as_numpy("SLEPT").tolist() == [[1]]
    assert watcher.count("slow")["executions"] == before["executions"] + 2
    watcher.close()
