"""Before the first request of ``isochrone bench``: headers with the model's metadata, limits of open files, ramps."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_runs import SHORT, StallingServer, bench
from typer.testing import CliRunner

from isochrone.bench import processes
from isochrone.bench.results.outcomes import OK, read_run
from isochrone.bench.sending.preparing import check_open_files
from isochrone.cli.bench import session
from isochrone.cli.main import app
from isochrone.errors import FlagError, Unavailable
from isochrone.secure.api_token import VARIABLE


class Guarded(BaseHTTPRequestHandler):
    """Answers those who have a token."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(StallingServer.METADATA)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        allowed = self.headers.get("authorization") == "Bearer secret"
        body = body if allowed else b'{"error":"no token"}'
        self.send_response(200 if allowed else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def guarded() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_headers_are_sent_when_the_metadata_is_read(guarded: str, tmp_path: Path) -> None:
    words = (guarded, "--model", "m", "--rate", "50", *SHORT)
    assert "no token" in bench(*words, code=2)
    path = tmp_path / "run.npz"
    bench(*words, "--header", "Authorization: Bearer secret", "--output", str(path))
    assert (read_run(path).outcomes.outcome == OK).all()


def test_the_token_of_the_environment_is_sent_with_every_request_and_kept_in_no_file(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "secret")
    run, report = tmp_path / "run.npz", tmp_path / "report.html"
    words = (guarded, "--model", "m", "--rate", "50", *SHORT)
    bench(*words, "--output", str(run), "--report", str(report))
    assert (read_run(run).outcomes.outcome == OK).all()
    with np.load(run) as kept:
        assert not any("secret" in str(kept[name]) for name in kept.files)
    assert "secret" not in report.read_text()
    # A header goes before it.
    assert "no token" in bench(*words, "--header", "Authorization: Bearer other", code=2)


@pytest.mark.parametrize(("connections", "is_allowed"), [(992, True), (993, False)])
def test_more_connections_than_open_files(connections: int, is_allowed: bool) -> None:
    if is_allowed:
        check_open_files(connections, 1024, is_open_loop=False)
        return
    with pytest.raises(FlagError, match=r"--concurrency: expected at most 992 connections .* open files is 1,024"):
        check_open_files(connections, 1024, is_open_loop=False)
    with pytest.raises(FlagError, match=r"--max-in-flight: .*--processes or ulimit -Hn.* given 993 connections"):
        check_open_files(connections, 1024, is_open_loop=True)


def test_the_soft_limit_of_open_files_is_raised() -> None:
    code = "import resource; from isochrone.open_files import raise_file_limit; print(raise_file_limit());"
    code += "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}));{code}"
    output = subprocess.run([sys.executable, "-c", lowered], capture_output=True, text=True, timeout=60, check=True)
    assert output.stdout.split() == [str(hard), str(hard)]


def test_a_ramp_keeps_what_it_has_when_a_run_cannot_start(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[processes.Measured] = []

    async def measure(*arguments: Any, **options: Any) -> processes.Measured:
        if len(runs) == 2:
            raise Unavailable("cannot connect to 127.0.0.1:1")
        runs.append(await processes.measure(*arguments, **options))
        return runs[-1]

    monkeypatch.setattr(session, "measure", measure)
    path = tmp_path / "run.npz"
    words = ["bench", guarded, "--model", "m", "--header", "Authorization: Bearer secret", "--rate", "50", *SHORT]
    result = CliRunner().invoke(app, [*words, "--slo", "p50<10s", "--ramp", "--json", "--output", str(path)])
    assert result.exit_code == 2, result.output
    shown = json.loads(result.stdout)
    assert len(shown["runs"]) == 2
    assert shown["ramp"]["finished"] is False
    assert "A run could not be made: cannot connect" in shown["ramp"]["verdict"]
    assert read_run(path).rate in (50.0, 100.0)
