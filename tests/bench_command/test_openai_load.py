"""``isochrone bench --protocol openai`` with a small server of that API: tokens, errors, models that it lists."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.bench.results.outcomes import OK, REJECTED, read_run
from isochrone.cli.main import app


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, Any], dict[str, str]]]

    def do_GET(self) -> None:
        self._whole(200, {"data": [{"id": "storyteller"}, {"id": "busy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
        if body["model"] == "busy":
            self._whole(429, {"error": {"message": "too many requests", "code": 429}})
        elif not body.get("stream"):
            self._whole(200, {"choices": [{"message": {"content": "Once"}}]})
        else:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            texts: list[Any] = [{"role": "assistant"}, {"content": "Once"}, {"content": " upon"}]
            for event in [json.dumps({"choices": [{"delta": delta}]}) for delta in texts] + ["[DONE]"]:
                piece = f"data: {event}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def _whole(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    Handler.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def bench(url: str, *words: str, code: int = 0) -> str:
    options = ("--protocol", "openai", "--rate", "40", "--warmup-seconds", "0", "--seconds", "0.4")
    result = CliRunner().invoke(app, ["bench", url, *options, *words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_chats(url: str, stream: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    words = ("--model", "storyteller", "--prompt", "Tell", "--max-tokens", "7", "--header", "Authorization: Bearer k")
    bench(url, *words, *stream, "--output", str(path))
    run = read_run(path)
    assert len(run.outcomes) == len(Handler.seen) > 0
    assert (run.outcomes.outcome == OK).all(), run.errors
    if stream:
        assert (run.outcomes.first_ns >= run.outcomes.sent_ns).all()
    else:
        assert (run.outcomes.first_ns == -1).all(), "an answer in one piece has no first token"
    where, body, headers = Handler.seen[0]
    assert where == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Tell"}]
    assert body["max_tokens"] == 7
    assert body.get("stream", False) is bool(stream)
    assert headers["authorization"] == "Bearer k"


def test_completions(url: str) -> None:
    bench(url, "--model", "storyteller", "--completions")
    where, body, _ = Handler.seen[0]
    assert (where, "prompt" in body) == ("/v1/completions", True)


def test_rejections_and_unknown_models(url: str, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    bench(url, "--model", "busy", "--output", str(path))
    run = read_run(path)
    assert (run.outcomes.outcome == REJECTED).all()
    assert list(run.errors) == ["HTTP 429: too many requests"]
    assert "did you mean 'storyteller'" in bench(url, "--model", "storytelle", code=2)
