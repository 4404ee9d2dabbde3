"""Servers that speak OpenAI's API alone behind a gateway, what the wire rejects, and prefixes that stay together."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway_process import Fleet, GatewayProcess, StartGateway
from server_process import ServerProcess, StartServer
from text_models import write_text_models
from watching import gauge, wait_for

MODEL = "org/large-model"


class _Handler(BaseHTTPRequestHandler):
    """Answers as vLLM's server does, and has no other path."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None: ...

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._answer(404, {"detail": "Not Found"})
        else:
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        if self.path != "/v1/chat/completions":
            self._answer(404, {"detail": "Not Found"})
        elif body["model"] != MODEL:
            error = {"message": "no such model", "type": "NotFoundError", "param": None, "code": 404}
            self._answer(404, {"error": error})
        elif body.get("stream"):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for word in ("a", "b", "c"):
                row = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                self._chunk(b"data: %b\n\n" % json.dumps({**chunk, "choices": [row]}).encode())
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        else:
            row = {"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop"}
            self._answer(200, {**chunk, "object": "chat.completion", "choices": [row]})

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    """Closes the connections of its handlers when it ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.open.discard(request)


@contextmanager
def openai_server() -> Iterator[str]:
    """Its address."""
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        for request in list(server.open):
            server.shutdown_request(request)
        server.server_close()


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{server.http_url}/v1", api_key="any", max_retries=0, timeout=60)


def ready(gateway: GatewayProcess) -> bool:
    connection = http.client.HTTPConnection(gateway.http_url, timeout=60)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def test_a_server_without_the_protocol(gateway_factory: StartGateway) -> None:
    with (
        openai_server() as address,
        gateway_factory([f"{address},api=openai"]) as gateway,
        client_of(gateway) as client,
    ):
        wait_for(lambda: ready(gateway))
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        asked: list[Any] = [{"role": "user", "content": "x"}]
        answer = client.chat.completions.create(model=MODEL, messages=asked)
        assert answer.choices[0].message.content == "abc"
        stream = client.chat.completions.create(model=MODEL, messages=asked, stream=True)
        assert [chunk.choices[0].delta.content for chunk in stream] == ["a", "b", "c"]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=asked)


@pytest.fixture(scope="module")
def two_workers(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Fleet]:
    """Two workers behind a gateway that goes by prefixes."""
    repository: Path = write_text_models(tmp_path_factory.mktemp("prefixes") / "models")
    with (
        server_factory(repository) as one,
        server_factory(repository) as other,
        gateway_factory([one, other], "--policy", "prefix") as gateway,
    ):
        yield Fleet(gateway, (one, other))


def answered(fleet: Fleet) -> list[float]:
    """Requests that each worker has answered."""
    return [gauge(worker, "nv_inference_request_success_total", "storyteller") for worker in fleet.workers]


def test_prompts_that_begin_alike_go_to_one_worker(two_workers: Fleet) -> None:
    system = {"role": "system", "content": "You are a storyteller. " * 30}
    with client_of(two_workers.gateway) as client:
        for number in range(12):
            before = answered(two_workers)
            asked: list[Any] = [system, {"role": "user", "content": f"tale {number}"}]
            client.chat.completions.create(model="storyteller", messages=asked, stream=number % 2 == 0)
            wait_for(lambda before=before: sum(answered(two_workers)) > sum(before))  # type: ignore[misc]
    assert sorted(answered(two_workers)) == [0, 12]


def test_a_body_over_the_limit_has_openais_form(two_workers: Fleet) -> None:
    for server in (two_workers.gateway, two_workers.workers[0]):
        connection = http.client.HTTPConnection(server.http_url, timeout=60)
        try:
            connection.putrequest("POST", "/v1/completions")
            connection.putheader("content-length", str(1 << 40))
            connection.endheaders()
            with connection.getresponse() as answer:
                error = json.loads(answer.read())["error"]
                assert (answer.status, error["type"]) == (413, "invalid_request_error")
                assert "max_body_bytes" in error["message"]
        finally:
            connection.close()


def test_a_pinned_version_is_answered_or_nothing(two_workers: Fleet) -> None:
    """The header takes precedence over the name in the body."""
    with client_of(two_workers.workers[0]) as client:

        def version(pin: str) -> str:
            headers = {"x-isochrone-model": pin}
            return client.completions.create(model="x", prompt="version", extra_headers=headers).choices[0].text

        assert [version(pin) for pin in ("storyteller=1", "storyteller=2", "storyteller")] == ["1", "2", "2"]
        with pytest.raises(openai.NotFoundError):
            version("storyteller=3")
        with pytest.raises(openai.BadRequestError, match="x-isochrone-model"):
            version("storyteller=new")
