"""A model that generates behind a real worker: generate, generate_stream, ModelStreamInfer, metrics, load reports."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from toy_model import answer_of
from toy_runner import text_tensor
from worker_thread import ServedToys, served, write_toy

from isochrone.clock import MILLISECOND, SECOND
from isochrone.errors import ConfigError
from isochrone.models.repository.repository import Repository
from isochrone.protocol.headers.orca import parse_orca_header
from isochrone.worker.backends.registry import MODULE_BY_BACKEND
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.generation.requests.sampling import GenerationParameters

SECONDS = 60


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedToys]:
    repository = tmp_path_factory.mktemp("generation") / "models"
    write_toy(repository, "toy", end_every=40)
    write_toy(
        repository,
        "slow",
        'instance_group { count: 2 }\nparameters { key: "max_tokens" value { string_value: "100" } }',
        step_seconds=0.005,
        context_tokens=20_000,
        blocks=6_000,
    )
    write_toy(repository, "patient")
    write_toy(repository, "long", context_tokens=200_000, blocks=60_000, prefill_tokens=64)
    with served(repository) as toys:
        yield toys


def expected(prompt: str, max_tokens: int, end_every: int = 40, **parameters: Any) -> str:
    return answer_of(prompt, GenerationParameters(max_tokens=max_tokens, temperature=0, **parameters), end_every)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]


def until(holds: Any) -> None:
    ends = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_generate_answers_once_with_the_prompt(toys: ServedToys) -> None:
    body = {"text_input": "hello", "max_tokens": 12, "temperature": 0}
    status, text = toys.post("/v2/models/toy/generate", body)
    assert (status, json.loads(text)["text_output"]) == (200, "hello" + expected("hello", 12))
    body = {"text_input": "hello", "parameters": {"max_tokens": 12, "temperature": 0, "exclude_input_in_output": True}}
    status, text = toys.post("/v2/models/toy/generate", body)
    assert (status, json.loads(text)["text_output"]) == (200, expected("hello", 12))


def test_generate_stream_sends_tokens(toys: ServedToys) -> None:
    body = {
        "text_input": "hi",
        "stream": True,
        "sampling_parameters": json.dumps({"max_tokens": "5", "temperature": "0", "stop": ["zz"]}),
        "return_finish_reason": True,
        "return_num_output_tokens": True,
        "max_tokens": 9,
        "ignore_eos": True,
    }
    status, text = toys.post("/v2/models/toy/generate_stream", body)
    answers = events(text)
    assert status == 200
    assert "".join(each["text_output"] for each in answers) == expected("hi", 9, ignore_eos=True)
    # The request's own parameter takes precedence.
    assert sum(each["num_output_tokens"] for each in answers) == 9
    assert [each["finish_reason"] for each in answers][-2:] == ["None", "length"]


def test_the_largest_options_of_a_call_are_the_models_too(toys: ServedToys) -> None:
    largest = (1 << 31) - 1
    body = {"model": "toy", "prompt": "hi", "max_tokens": largest, "top_k": largest, "stop": ["z" * 1024] * 4}
    status, text = toys.post("/v1/completions", {**body, "seed": (1 << 63) - 1, "priority": 1 << 31, "n": 2})
    assert status == 200, text


def test_a_chat(toys: ServedToys) -> None:
    messages = json.dumps([{"role": "user", "content": "hé"}])
    status, text = toys.post("/v2/models/toy/generate", {"messages": messages, "max_tokens": 8, "temperature": 0})
    assert (status, json.loads(text)["text_output"]) == (200, expected("<user>hé", 8))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"temperature": 2.5}, "parameter 'temperature': expected a number from 0 to 2, given 2.5"),
        ({"top_p": 0}, "parameter 'top_p': expected a number above 0 and up to 1, given 0"),
        ({"max_tokens": True}, "parameter 'max_tokens': expected a whole number from 1"),
        ({"max_token": 5}, "did you mean 'max_tokens'?"),
        ({"n": 2}, "parameter 'n': expected 1"),
        ({"sampling_parameters": "[]"}, "sampling_parameters: expected a JSON object"),
        ({"time_to_first_token_ms": 0.000001}, "the first token would come"),
    ],
)
def test_errors_name_the_parameter(toys: ServedToys, parameters: dict[str, Any], words: str) -> None:
    status, text = toys.post("/v2/models/toy/generate", {"text_input": "x", **parameters})
    assert status == (504 if "first" in words else 400)
    assert words in json.loads(text)["error"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "option"),
    [
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2},
            "top_logprobs",
        ),
        ("completions", {"prompt": "x", "logprobs": 2}, "logprobs"),
    ],
)
def test_openai_s_errors_name_the_option_of_the_call(
    toys: ServedToys, path: str, body: dict[str, Any], option: str, streams: bool
) -> None:
    status, text = toys.post(f"/v1/{path}", {"model": "toy", "stream": streams, **body})
    error = json.loads(text)["error"]
    assert (status, error["param"], error["code"]) == (400, option, "invalid_value")
    assert error["message"] == f"'{option}': expected 0 or 1: anything else is not supported, given 2"


@pytest.mark.parametrize("path", ["v2/models/patient/generate", "v2/models/patient/generate_stream", "v1/completions"])
@pytest.mark.parametrize("prompt", ["x" * 100, "x"])
def test_refusals_say_that_nothing_has_run(toys: ServedToys, path: str, prompt: str) -> None:
    """By the length of the text, the long prompt is in time: its tokens tell the engine's thread that it is not."""
    toys.expect_steps_of("patient", SECOND)
    deadline = 4000 if len(prompt) > 1 else 500
    body = {"text_input": prompt} if path.startswith("v2") else {"model": "patient", "prompt": prompt}
    status, headers, text = toys.call(f"/{path}", {**body, "time_to_first_token_ms": deadline})
    assert status == 504
    assert "the first token would come" in text
    assert headers["x-isochrone-unprocessed"] == "1"


@pytest.mark.parametrize(("prompt", "deadline", "mark"), [("x" * 100, 4000, None), ("x", 500, "1")])
def test_a_call_has_not_run_only_if_no_choice_has(
    toys: ServedToys, prompt: str, deadline: int, mark: str | None
) -> None:
    """The first choice of the short prompt is refused before the second one is submitted."""
    toys.expect_steps_of("patient", SECOND)
    body = {"model": "patient", "prompt": prompt, "n": 2, "time_to_first_token_ms": deadline}
    status, headers, _ = toys.call("/v1/completions", body)
    assert (status, headers["x-isochrone-unprocessed"]) == (504, mark)


def test_a_prompt_that_is_too_long(toys: ServedToys) -> None:
    status, text = toys.post("/v2/models/toy/generate", {"text_input": "x" * 300})
    assert (status, "300 tokens" in text, "context of 256" in text) == (400, True, True)


def test_metadata_is_that_of_tritons_vllm_backend(toys: ServedToys) -> None:
    metadata = json.loads(toys.get("http", "/v2/models/toy"))
    assert {"name": "text_input", "datatype": "BYTES", "shape": [1]} in metadata["inputs"]
    assert {"name": "stream", "datatype": "BOOL", "shape": [1]} in metadata["inputs"]
    assert {"name": "text_output", "datatype": "BYTES", "shape": [-1]} in metadata["outputs"]
    assert {"name": "num_input_tokens", "datatype": "UINT32", "shape": [1]} in metadata["outputs"]
    status, text = toys.post("/v2/models/toy/infer", {"inputs": []})
    assert (status, "decoupled" in text) == (501, True)


def test_model_stream_infer_with_the_stock_client(toys: ServedToys) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(f"127.0.0.1:{toys.ports['grpc']}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(6):
            prompt = triton.InferInput("text_input", [1], "BYTES")
            prompt.set_data_from_numpy(text_tensor(f"prompt {number}"))
            stream = triton.InferInput("stream", [1], "BOOL")
            stream.set_data_from_numpy(np.array([True]))
            client.async_stream_infer(
                "toy",
                [prompt, stream],
                request_id=str(number),
                parameters={"max_tokens": 10, "temperature": 0.0},
                enable_empty_final_response=True,
            )
        texts = dict.fromkeys(map(str, range(6)), "")
        ended = 0
        while ended < 6:
            result, error = answers.get(timeout=SECONDS)
            assert error is None
            response = result.get_response()
            output = result.as_numpy("text_output")
            if output is not None:
                texts[response.id] += output[0].decode()
            ended += response.parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert texts == {str(number): expected(f"prompt {number}", 10) for number in range(6)}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"time_to_first_token_ms": 500}, "the first token would come"),
        ({"inter_token_ms": 500.5}, "between tokens"),
    ],
)
def test_model_stream_infer_keeps_the_deadlines_of_tokens(
    toys: ServedToys, asked: dict[str, float], words: str
) -> None:
    toys.expect_steps_of("patient", SECOND)
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(f"127.0.0.1:{toys.ports['grpc']}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        prompt = triton.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(text_tensor("x"))
        client.async_stream_infer("patient", [prompt], parameters={"max_tokens": 2, **asked})
        _, error = answers.get(timeout=SECONDS)
        client.stop_stream()
    assert words in str(error)


def test_a_client_that_disconnects_frees_its_blocks(toys: ServedToys) -> None:
    runner = toys.runner("slow")
    body = json.dumps({"text_input": "x", "stream": True, "max_tokens": 10_000}).encode()
    with socket.create_connection(("127.0.0.1", toys.ports["http"])) as client:
        client.sendall(
            b"POST /v2/models/slow/generate_stream HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        assert client.recv(100)
        assert any(engine.scheduler.pool.in_use for engine in runner._engines.serving)
    until(lambda: not any(engine.scheduler.pool.in_use for engine in runner._engines.serving))
    until(lambda: toys.worker.catalog.find("slow", "").in_flight == 0)


def test_a_client_that_reads_nothing_is_paused(toys: ServedToys) -> None:
    runner = toys.runner("long")
    engine = runner._engines.serving[0]
    # Each response repeats the id, so that few of them fill the buffers of the sockets.
    body = json.dumps({"text_input": "x", "stream": True, "max_tokens": 100_000, "id": "i" * 50_000}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", toys.ports["http"]))
        client.sendall(
            b"POST /v2/models/long/generate_stream HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        until(lambda: any(each.is_paused for each in list(engine.scheduler.running)))
        # Others go on meanwhile.
        status, _ = toys.post("/v2/models/long/generate", {"text_input": "y", "max_tokens": 4})
        assert status == 200
    until(lambda: not engine.scheduler.pool.in_use)


def test_both_instances_work(toys: ServedToys) -> None:
    # Measured on a busy machine, one might seem so much slower that it gets nothing.
    toys.expect_steps_of("slow", 5 * MILLISECOND)
    results: list[tuple[int, str]] = []

    def send(number: int) -> None:
        body = {"text_input": f"p{number}", "max_tokens": 10, "temperature": 0}
        results.append(toys.post("/v2/models/slow/generate", body))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {json.loads(text)["text_output"] for _, text in results}
    assert texts == {f"p{number}" + expected(f"p{number}", 10, 0) for number in range(12)}
    assert all(engine.counts.steps for engine in toys.runner("slow")._engines.serving)


def test_metrics_and_load_report(toys: ServedToys) -> None:
    toys.post("/v2/models/toy/generate", {"text_input": "hello", "max_tokens": 12})
    page = toys.get("metrics", "/metrics")
    for name in ("tokens_total", "prompt_tokens_total", "reused_tokens_total", "steps_total", "preemptions_total"):
        assert f'isochrone_generation_{name}{{model="toy",version="1"}}' in page
    for name in ("running", "waiting", "blocks", "blocks_in_use"):
        assert f'isochrone_generation_{name}{{model="toy",version="1"}}' in page
    assert 'isochrone_generation_refusals_total{code="deadline_exceeded",model="toy",version="1"}' in page
    assert 'isochrone_generation_time_to_first_token_seconds_count{model="toy",version="1"}' in page
    assert 'isochrone_generation_inter_token_seconds_count{model="toy",version="1"}' in page
    report = toys.worker.service.load_report("toy")
    assert report["named_metrics.kv_cache_utilization"] == 0
    assert report["named_metrics.max_token_capacity"] == 256
    assert report["named_metrics.estimated_wait_us"] > 0
    assert report["named_metrics.inter_token_us"] > 0
    assert report["named_metrics.least_wait_us"] > 0
    assert toys.worker.service.load_report()["named_metrics.inter_token_us"] > 0


@pytest.mark.parametrize("path", ["v2/models/patient/generate", "v2/models/patient/generate_stream", "v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_answers_and_refusals_carry_the_load_report(toys: ServedToys, path: str, stream: bool) -> None:
    toys.expect_steps_of("patient", SECOND)
    body: dict[str, Any] = {"model": "patient", "prompt": "x", "stream": stream, "max_tokens": 3}
    if path.startswith("v2"):
        body = {"text_input": "x", "stream": stream and path.endswith("stream"), "max_tokens": 3}
    for deadline, expected_status in (({}, 200), ({"inter_token_ms": 500}, 504)):
        status, headers, _ = toys.call(f"/{path}", {**body, **deadline}, {"endpoint-load-metrics-format": "text"})
        report = parse_orca_header(headers["endpoint-load-metrics"].encode())
        assert (status, report["inter_token_us"] >= 1e6) == (expected_status, True)
        _, headers, _ = toys.call(f"/{path}", {**body, **deadline})
        assert headers["endpoint-load-metrics"] is None


def test_a_model_whose_engine_hangs_is_not_ready(toys: ServedToys) -> None:
    service, (engine,) = toys.worker.service, toys.runner("toy")._engines.serving
    assert service.is_model_ready("toy", "")
    # As if a step had begun when the machine started.
    engine.step_began = 1
    until(lambda: not service.is_model_ready("toy", "") and not service.is_model_ready("toy", "1"))
    assert service.is_model_ready("slow", "")
    status, text = toys.post("/v2/models/toy/generate", {"text_input": "hello"})
    assert status == 503
    assert "no instance is left, since a step does not end: load the model again" in text
    until(lambda: service.load_report("toy")["named_metrics.hung_instances"] == 1)
    assert service.load_report("toy")["named_metrics.estimated_wait_us"] == 3600e6
    engine.step_began = 0
    until(lambda: service.is_model_ready("toy", ""))
    status, text = toys.post("/v2/models/toy/generate", {"text_input": "hello", "max_tokens": 3, "temperature": 0})
    assert (status, json.loads(text)["text_output"]) == (200, "hello" + expected("hello", 3))


def test_unloading_waits_for_answers_and_frees_the_model(tmp_path: Path) -> None:
    write_toy(tmp_path / "models", "toy")
    with served(tmp_path / "models") as toys:
        engines = toys.runner("toy")._engines.engines
        status, _ = toys.post("/v2/models/toy/generate", {"text_input": "hello"})
        assert status == 200
    assert all(engine.executable.closed.is_set() for engine in engines)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("max_batch_size: 4", "max_batch_size: expected 0"),
        ('input { name: "prompt" data_type: TYPE_STRING dims: [1] }', "input[0].name: expected one of text_input"),
        ('input { name: "stream" data_type: TYPE_INT32 dims: [1] }', "expected TYPE_BOOL [1], given TYPE_INT32"),
        ('parameters { key: "max_waiting" value { string_value: "-1" } }', "a whole number of at least 1"),
        ('parameters { key: "chunked_prefill" value { string_value: "maybe" } }', "expected true or false"),
        ('parameters { key: "batching" value { string_value: "none" } }', "one of continuous, static, single"),
        ('parameters { key: "temperature" value { string_value: "3" } }', "a number from 0 to 2"),
    ],
)
def test_bad_configurations(tmp_path: Path, config: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULE_BY_BACKEND, "generation", "toy_model")
    write_toy(tmp_path / "models", "toy", config)

    async def load() -> None:
        catalog = Catalog(Repository([tmp_path / "models"]), None, 30)
        try:
            await catalog.load("toy")
        finally:
            await catalog.close(5)

    with pytest.raises(ConfigError) as raised:
        asyncio.run(load())
    assert words in str(raised.value)
