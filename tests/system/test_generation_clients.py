"""A real transformer behind a worker and a gateway: the stock ``openai`` client and Triton's endpoints.

The model is small and has random weights: what it says makes no sense, but it always says the same.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc

from gateway_process import Fleet, StartGateway
from generation_models import write_sample
from server_process import ServerProcess, StartServer
from watching import wait_for

MODEL = "llama"
PROMPT = "the worker answers within"
CHAT: list[Any] = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def generation_fleet(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Fleet]:
    repository = tmp_path_factory.mktemp("generation") / "models"
    write_sample(repository, MODEL)
    with server_factory(repository) as worker, gateway_factory([worker]) as gateway:
        yield Fleet(gateway, (worker,))


@pytest.fixture(params=["worker", "gateway"])
def server(request: pytest.FixtureRequest, generation_fleet: Fleet) -> ServerProcess:
    return generation_fleet.workers[0] if request.param == "worker" else generation_fleet.gateway


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http_url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def complete(client: openai.OpenAI, prompt: str = PROMPT, **options: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0} | options)


def metric(fleet: Fleet, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.workers[0].metrics_port}/metrics") as page:
        text = page.read().decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


def test_completions_are_counted_and_repeatable(client: openai.OpenAI) -> None:
    first, second = complete(client), complete(client)
    assert first.choices[0].text == second.choices[0].text
    assert first.choices[0].finish_reason in ("length", "stop")
    assert first.usage.completion_tokens == 12
    assert first.usage.total_tokens == first.usage.prompt_tokens + 12


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = complete(client).choices[0].text
    pieces = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole
    assert len([piece for piece in pieces if piece.choices and piece.choices[0].text]) > 3
    assert pieces[-1].usage.completion_tokens == 12


def test_a_chat_by_the_models_template(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=6, temperature=0)
    streamed = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=6, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == answer.choices[0].message.content


def test_a_seed_decides(client: openai.OpenAI) -> None:
    hot = {"temperature": 1.5, "max_tokens": 16}
    assert complete(client, seed=7, **hot).choices[0].text == complete(client, seed=7, **hot).choices[0].text
    assert len({complete(client, seed=seed, **hot).choices[0].text for seed in range(4)}) > 1


def test_many_at_once_get_what_each_gets_alone(server: ServerProcess, client: openai.OpenAI) -> None:
    prompts = [PROMPT[: 5 + 3 * number] for number in range(7)]
    alone = [complete(client, prompt).choices[0].text for prompt in prompts]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://{server.http_url}/v1", api_key="any", timeout=60) as many:
            answers = await asyncio.gather(
                *(
                    many.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0)
                    for prompt in prompts
                )
            )
        return [answer.choices[0].text for answer in answers]

    assert asyncio.run(together()) == alone


def test_wrong_parameters_and_long_prompts_are_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        complete(client, temperature=3)
    with pytest.raises(openai.BadRequestError, match="context"):
        complete(client, prompt=PROMPT * 200)
    with pytest.raises(openai.BadRequestError, match="top_p"):
        complete(client, top_p=0)


def test_a_stream_that_is_left_gives_its_blocks_back(client: openai.OpenAI, generation_fleet: Fleet) -> None:
    stream = complete(client, stream=True, max_tokens=60, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for(lambda: metric(generation_fleet, "isochrone_generation_running") == 0)
    wait_for(lambda: metric(generation_fleet, "isochrone_generation_blocks_in_use") == 0)


def test_tritons_endpoints_say_the_same(server: ServerProcess, client: openai.OpenAI) -> None:
    text = complete(client).choices[0].text
    body = json.dumps({"text_input": PROMPT, "parameters": {"max_tokens": 12, "temperature": 0, "stream": False}})
    url = f"http://{server.http_url}/v2/models/{MODEL}/generate"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body.encode(), method="POST")))
    assert answer["text_output"].removeprefix(PROMPT) == text
    events = []
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}_stream", body.replace("false", "true").encode(), method="POST")
    ) as stream:
        events = [json.loads(line[6:]) for line in stream if line.startswith(b"data: ")]
    assert "".join(event["text_output"] for event in events).removeprefix(PROMPT) == text


def test_the_stream_of_tritons_client(server: ServerProcess, client: openai.OpenAI) -> None:
    text = complete(client).choices[0].text
    answers: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as triton:
        triton.start_stream(lambda result, error: answers.append(error or result))
        inputs = []
        for name, datatype, value in (
            ("text_input", "BYTES", PROMPT.encode()),
            ("stream", "BOOL", True),
            ("sampling_parameters", "BYTES", json.dumps({"max_tokens": 12, "temperature": 0}).encode()),
        ):
            given = tritonclient.grpc.InferInput(name, [1], datatype)
            given.set_data_from_numpy(np.array([value], dtype=object if datatype == "BYTES" else bool))
            inputs.append(given)
        triton.async_stream_infer(MODEL, inputs, enable_empty_final_response=True)
        wait_for(lambda: answers and _is_final(answers[-1]))
        triton.stop_stream()
    said = b"".join(
        part for answer in answers if (output := answer.as_numpy("text_output")) is not None for part in output
    )
    assert said.decode().removeprefix(PROMPT) == text


def _is_final(answer: Any) -> bool:
    assert not isinstance(answer, Exception), answer
    final: bool = answer.get_response().parameters["triton_final_response"].bool_param
    return final
