"""The clients of the proof against real processes: what they record is what happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.control.checker import Commit, check
from bench.control.history import ERROR, OK, Answer, read
from bench.control.models import CHAIN, PIPELINES, SOLO, STAGES, Service, write_repository
from gateway_process import StartGateway
from server_process import StartServer

pytestmark = pytest.mark.long

_VERSIONS = Commit(1, dict.fromkeys((SOLO, CHAIN, *STAGES), "2"))


def _record(directory: Path, *words: str) -> list[Answer]:
    command = [sys.executable, "-m", "bench.control.clients", "--history", str(directory), "--client", "c1", *words]
    subprocess.run(command, check=True, timeout=90)
    return read(directory)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_versions_and_stages_are_recorded(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway, transport: str
) -> None:
    repository = write_repository(tmp_path / "models", versions=2, service=Service(0.2, 0.5))
    with server_factory(repository) as worker, gateway_factory([worker]) as one, gateway_factory([worker]) as two:
        history = _record(
            tmp_path / "history",
            *("--gateway", one.http_url, "--gateway", two.http_url, "--transport", transport),
            *("--rate", "100", "--seconds", "1.5"),
        )
    assert len(history) > 50
    assert {answer.outcome for answer in history} == {OK}, Counter(answer.error for answer in history)
    assert {(answer.model, answer.gateway) for answer in history} == {
        (model, gateway.http_url) for model in (SOLO, CHAIN) for gateway in (one, two)
    }
    assert {(answer.model, answer.stages) for answer in history} == {
        (SOLO, ((SOLO, "2"),)),
        (CHAIN, (("stage_a", "2"), ("stage_b", "2"))),
    }
    assert check(history, [_VERSIONS], PIPELINES) == []


def test_a_gateway_that_is_killed_is_an_explicit_error_and_the_other_is_asked(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    repository = write_repository(tmp_path / "models", versions=2, service=Service(5))
    with (
        server_factory(repository) as worker,
        gateway_factory([worker]) as one,
        gateway_factory([worker], check_exit=False) as two,
    ):
        command = [sys.executable, "-m", "bench.control.clients", "--history", str(tmp_path / "history")]
        command += [
            "--client",
            "c1",
            "--gateway",
            one.http_url,
            "--gateway",
            two.http_url,
            "--in-flight",
            "8",
            "--retry",
        ]
        with subprocess.Popen([*command, "--model", SOLO]) as client:
            try:
                path = tmp_path / "history" / "c1.history"
                _wait_until_larger(path, 0, client)
                two.process.send_signal(signal.SIGKILL)
                _wait_until_larger(path, path.stat().st_size + 50_000, client)
            finally:
                client.terminate()
            assert client.wait(60) == 0
    history = read(tmp_path / "history")
    failed = [answer for answer in history if answer.outcome == ERROR]
    assert failed
    assert {answer.gateway for answer in failed} == {two.http_url}
    assert all(answer.error.startswith("connection") for answer in failed)
    assert check(history, [_VERSIONS], PIPELINES) == []


def _wait_until_larger(path: Path, size: int, client: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > size):
        assert client.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.02)
