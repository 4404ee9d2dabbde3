"""The stock ``openai`` clients, unchanged: synchronous, asynchronous and streaming, at a worker and at a gateway."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from documented import blocks
from gateway_process import Fleet, StartGateway
from sample_models import release_file
from server_process import ServerProcess, StartServer
from text_models import write_text_models
from watching import load_now, wait_for


@pytest.fixture(scope="module")
def text_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_models(tmp_path_factory.mktemp("openai") / "models")


@pytest.fixture(scope="module")
def text_fleet(text_repository: Path, server_factory: StartServer, gateway_factory: StartGateway) -> Iterator[Fleet]:
    """One worker, so that its load is the fleet's, and a gateway in front of it."""
    with server_factory(text_repository) as worker, gateway_factory([worker]) as gateway:
        yield Fleet(gateway, (worker,))


@pytest.fixture(params=["worker", "gateway"])
def server(request: pytest.FixtureRequest, text_fleet: Fleet) -> ServerProcess:
    return text_fleet.workers[0] if request.param == "worker" else text_fleet.gateway


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http_url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def asked(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def told(client: openai.OpenAI, **options: Any) -> dict[str, Any]:
    """What arrives at the model."""
    answer = client.completions.create(model="storyteller", prompt="what you were told", **options)
    found: dict[str, Any] = json.loads(answer.choices[0].text)
    return found


class TestChat:
    def test_an_answer(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model="storyteller",
            messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": "once upon a time"}],
        )
        assert answer.id.startswith("chatcmpl-")
        assert (answer.object, answer.model) == ("chat.completion", "storyteller")
        assert answer.created > 1_700_000_000
        assert answer.system_fingerprint is not None
        (choice,) = answer.choices
        assert choice.message.role == "assistant"
        assert choice.message.content == "system: be brief user: once upon a time"
        assert (choice.finish_reason, choice.logprobs) == ("stop", None)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 8, 16)

    def test_a_stream(self, client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(
            model="storyteller",
            messages=asked("once upon a time"),
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[0].choices[0].delta.role == "assistant"
        pieces = [chunk.choices[0].delta.content for chunk in chunks[1:-2]]
        assert pieces == ["user:", " once", " upon", " a", " time"]
        assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 5)

    def test_the_length_ends_it(self, client: openai.OpenAI) -> None:
        for limit in ({"max_tokens": 2}, {"max_completion_tokens": 2}):
            answer = client.chat.completions.create(model="storyteller", messages=asked("once upon"), **limit)  # type: ignore[call-overload]
            assert answer.choices[0].finish_reason == "length"
            assert answer.choices[0].message.content == "user: once"

    def test_several_choices(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model="storyteller", messages=asked("what you were told"), n=3, seed=5, temperature=0.5
        )
        seeds = [json.loads(choice.message.content or "")["seed"] for choice in answer.choices]
        assert ([choice.index for choice in answer.choices], seeds) == ([0, 1, 2], [5, 6, 7])

    def test_several_streamed_choices(self, client: openai.OpenAI) -> None:
        texts = {0: "", 1: ""}
        ends: dict[int, str | None] = {}
        for chunk in client.chat.completions.create(
            model="storyteller", messages=asked("a b c"), n=2, stream=True, max_tokens=3
        ):
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
        assert texts == {0: "user: a b", 1: "user: a b"}
        assert ends == {0: "length", 1: "length"}

    def test_log_probabilities(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="storyteller", messages=asked("x"), logprobs=True, top_logprobs=1)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert [token.token for token in logprobs.content] == ["user:", " x"]
        assert logprobs.content[1].logprob == -1.5
        assert [(top.token, top.logprob) for top in logprobs.content[1].top_logprobs] == [("other", -0.5)]

    def test_parts_of_text(self, client: openai.OpenAI) -> None:
        parts: Any = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
        answer = client.chat.completions.create(
            model="storyteller", messages=[{"role": "user", "content": parts}], user="u", store=False, metadata={}
        )
        assert answer.choices[0].message.content == "user: one two"


class TestCompletions:
    def test_prompts_and_choices(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="storyteller", prompt=["a b", "c"], n=2, stop=["b"], echo=True)
        assert answer.id.startswith("cmpl-")
        assert [choice.text for choice in answer.choices] == ["a ba", "a ba", "cc", "cc"]
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)

    def test_a_stream(self, client: openai.OpenAI) -> None:
        chunks = list(client.completions.create(model="storyteller", prompt="a b", stream=True, echo=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "a ba b"
        assert chunks[-1].choices[0].finish_reason == "stop"

    def test_what_the_model_is_told(self, client: openai.OpenAI) -> None:
        extra = {"top_k": 3, "time_to_first_token_ms": 200, "inter_token_ms": 20.5, "priority": 2}
        assert told(client, temperature=0, top_p=0.5, seed=-1, max_tokens=9, stop="x", extra_body=extra) == {
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "seed": -1,
            "max_tokens": 9,
            "stop": ["x"],
            "stream": False,
            "time_to_first_token_ms": 200.0,
            "inter_token_ms": 20.5,
        }

    def test_log_probabilities(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="storyteller", prompt="a bc", logprobs=2)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens == ["a", " bc"]
        assert logprobs.text_offset == [0, 1]
        assert logprobs.top_logprobs == [{"other": -0.5, "a": -1.5}, {"other": -0.5, " bc": -1.5}]

    def test_any_model_from_text_to_text(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="words", prompt="a b c", extra_body={"seed": 3})
        assert (answer.choices[0].text, answer.usage) == ("abc", None)
        assert client.completions.create(model="narrow", prompt="plain").choices[0].text == "PLAIN"

    def test_versions(self, client: openai.OpenAI) -> None:
        def version(model: str) -> str:
            return client.completions.create(model=model, prompt="version").choices[0].text

        assert [version(model) for model in ("storyteller", "storyteller@1", "storyteller@2")] == ["2", "1", "2"]


class TestModels:
    def test_the_list(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["narrow", "storyteller", "words"]

    def test_one(self, client: openai.OpenAI) -> None:
        assert client.models.retrieve("words").id == "words"
        assert client.models.retrieve("storyteller@1").id == "storyteller@1"
        for name in ("nobody", "add_sub"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.models.retrieve(name)
            assert caught.value.code == "model_not_found"


class TestErrors:
    def test_an_unknown_model(self, client: openai.OpenAI) -> None:
        for name in ("nobody", "storyteller@9", "nobody@1"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.chat.completions.create(model=name, messages=asked("x"))
            error = caught.value
            assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
            assert name in error.message

    @pytest.mark.parametrize(
        ("options", "parameter"),
        [
            ({"temperature": 3}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"n": 0}, "n"),
            ({"frequency_penalty": 0.5}, "frequency_penalty"),
            ({"logit_bias": {"1": 2}}, "logit_bias"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"extra_body": {"temperatur": 1}}, "temperatur"),
            ({"messages": []}, "messages"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                "messages[0].content[0]",
            ),
        ],
    )
    def test_a_parameter(self, client: openai.OpenAI, options: dict[str, Any], parameter: str) -> None:
        call = {"model": "storyteller", "messages": asked("x"), **options}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**call)
        assert (caught.value.param, caught.value.type) == (parameter, "invalid_request_error")

    def test_a_model_without_the_tensors(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=r"no input 'messages'.*use /v1/completions"):
            client.chat.completions.create(model="words", messages=asked("x"))
        with pytest.raises(openai.BadRequestError, match="no output 'text_output'"):
            client.completions.create(model="add_sub", prompt="x")
        with pytest.raises(openai.BadRequestError, match="token ids"):
            client.completions.create(model="words", prompt=[1, 2])
        with pytest.raises(openai.BadRequestError, match="returns none"):
            client.completions.create(model="words", prompt="x", logprobs=1)

    def test_a_failing_model(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.InternalServerError, match="the story breaks off"):
            client.completions.create(model="storyteller", prompt="break")
        with pytest.raises(openai.InternalServerError, match="the story breaks off"):
            client.completions.create(model="storyteller", prompt="wrong from the start", stream=True)

    def test_a_stream_that_breaks_off(self, client: openai.OpenAI) -> None:
        stream = client.completions.create(model="storyteller", prompt="break", stream=True)
        seen: list[str] = []
        with pytest.raises(openai.APIError, match="the story breaks off"):
            seen.extend(chunk.choices[0].text for chunk in stream)

    def test_a_path_that_is_none(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="Unknown request URL"):
            client.embeddings.create(model="words", input="x", encoding_format="float")

    def test_a_body_that_is_none(self, server: ServerProcess) -> None:
        for body in (b"{", b"[]", b'"x"', b""):
            status, answer = post(server, "/v1/chat/completions", body)
            assert status == 400
            assert answer["error"]["type"] == "invalid_request_error"
        status, answer = post(server, "/v1/completions", b'{"model": 3, "prompt": "x"}')
        assert (status, answer["error"]["param"]) == (400, "model")

    def test_a_deadline(
        self, server: ServerProcess, client: openai.OpenAI, text_fleet: Fleet, text_repository: Path
    ) -> None:
        running = begin(server, {"model": "narrow", "prompt": "hold"})
        wait_for(lambda: load_now(text_fleet.workers[0])["in_flight"] == 1)
        try:
            with pytest.raises(openai.InternalServerError) as caught:
                client.with_options(max_retries=2).completions.create(
                    model="narrow", prompt="x", extra_headers={"x-request-timeout-ms": "50"}
                )
            assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
            assert caught.value.response.headers["x-should-retry"] == "false"
        finally:
            release_narrow(text_fleet, text_repository)
            finish(running)

    def test_a_full_queue(
        self, server: ServerProcess, client: openai.OpenAI, text_fleet: Fleet, text_repository: Path
    ) -> None:
        worker = text_fleet.workers[0]
        waiting = []
        for count in (1, 2):
            waiting.append(begin(server, {"model": "narrow", "prompt": "hold"}))
            wait_for(lambda count=count: load_now(worker)["in_flight"] == count)  # type: ignore[misc]
        try:
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="narrow", prompt="x")
            assert (caught.value.code, caught.value.type) == ("queue_full", "rate_limit_error")
        finally:
            release_narrow(text_fleet, text_repository)
            for each in waiting:
                finish(each)


class TestCallersThatLeave:
    def test_a_closed_stream_is_cancelled(self, client: openai.OpenAI, text_fleet: Fleet) -> None:
        stream = client.chat.completions.create(model="storyteller", messages=asked("for ever"), n=2, stream=True)
        for _, _chunk in zip(range(10), stream, strict=False):
            pass
        wait_for(lambda: load_now(text_fleet.workers[0])["in_flight"] == 2)
        stream.close()
        wait_for(lambda: not load_now(text_fleet.workers[0])["in_flight"])

    def test_a_call_that_is_given_up(self, client: openai.OpenAI, text_fleet: Fleet) -> None:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).completions.create(model="storyteller", prompt="for ever")
        wait_for(lambda: not load_now(text_fleet.workers[0])["in_flight"])

    def test_one_that_stops_reading(self, server: ServerProcess, text_fleet: Fleet) -> None:
        """The model waits, and the server's memory does not grow with what it would say."""
        body = json.dumps({"model": "storyteller", "prompt": "for ever", "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            wait_for(lambda: load_now(text_fleet.workers[0])["in_flight"] == 1)
        wait_for(lambda: not load_now(text_fleet.workers[0])["in_flight"])


def test_the_asynchronous_client(server: ServerProcess) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"http://{server.http_url}/v1", api_key="any", timeout=60) as client:

            async def streamed(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="storyteller", messages=asked(f"tale {number}"), stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole(number: int) -> str:
                answer = await client.completions.create(model="storyteller", prompt=f"tale {number}")
                return answer.choices[0].text

            texts = await asyncio.gather(*(streamed(number) for number in range(8)))
            assert texts == [f"user: tale {number}" for number in range(8)]
            assert await asyncio.gather(*map(whole, range(8))) == [f"tale {number}" for number in range(8)]
            assert [model.id async for model in client.models.list()] == ["narrow", "storyteller", "words"]
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="nobody", prompt="x")

    asyncio.run(run())


def test_a_compressed_body(server: ServerProcess) -> None:
    body = gzip.compress(json.dumps({"model": "storyteller", "prompt": "a b"}).encode())
    status, answer = post(server, "/v1/completions", body, {"content-encoding": "gzip"})
    assert (status, answer["choices"][0]["text"]) == (200, "a b")
    status, answer = post(server, "/v1/completions", b"no", {"content-encoding": "gzip"})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def test_the_documented_client(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [text for page, text in blocks("python") if page.name == "openai.md"]
    exec(block.replace("localhost:8000", server.http_url), {})
    assert capsys.readouterr().out == (
        "['narrow', 'storyteller', 'words']\n"
        "Once upon a time CompletionUsage(completion_tokens=4, prompt_tokens=4, total_tokens=8, "
        "completion_tokens_details=None, prompt_tokens_details=None)\n"
        "user: Tell me a story"
    )


def post(
    server: ServerProcess, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(server.http_url, timeout=60)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def begin(server: ServerProcess, call: dict[str, Any]) -> http.client.HTTPConnection:
    """A call whose answer is read later."""
    connection = http.client.HTTPConnection(server.http_url, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(call).encode())
    return connection


def finish(connection: http.client.HTTPConnection) -> None:
    with connection.getresponse() as answer:
        assert (answer.status, json.loads(answer.read())["choices"][0]["text"]) == (200, "HOLD")
    connection.close()


def release_narrow(fleet: Fleet, repository: Path) -> None:
    """Ends the held runs of ``narrow``."""
    file = release_file(repository, "narrow")
    file.touch()
    try:
        wait_for(lambda: not load_now(fleet.workers[0])["in_flight"])
    finally:
        file.unlink()
