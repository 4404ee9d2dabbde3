"""``make demo-policies`` as a newcomer sees it: figures, its words when something is missing, nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import runpy
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository: Path = tmp_path_factory.mktemp("samples") / "models"
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](repository)
    return repository


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "policies_demo.py"), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250, check=False)


def test_the_demo_prints_its_figures_and_ends_well(samples: Path) -> None:
    result = demo("--models", str(samples), "--seconds", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    for policy in ("round_robin", "least_connections", "power_of_two", "prequal"):
        row = next(line.split() for line in result.stdout.splitlines() if line.startswith(f"{policy} "))
        requests, *percentiles, failed = (float(figure.replace(",", "")) for figure in row[1:-1])
        assert requests > 100
        assert len(percentiles) == 3
        assert percentiles == sorted(percentiles)
        assert failed == 0
    assert re.search(r"^[\d,]+ answered, 0 failed, \d+ sent again", result.stdout, re.MULTILINE)
    for model in ("detector", "preprocess", "pipeline", "tracker"):
        row = next(line.split() for line in result.stdout.splitlines() if line.startswith(f"{model} "))
        rate, *percentiles = (float(figure.replace(",", "")) for figure in row[2:])
        assert rate > 10
        assert len(percentiles) == 4
        assert percentiles == sorted(percentiles)
    for stage in ("network", "gateway", "dispatch", "queue", "batch", "compute", "serialise", "total"):
        assert re.search(rf"^{stage} +\d", result.stdout, re.MULTILINE)


def test_the_demo_says_what_is_missing_or_broken(samples: Path, tmp_path: Path) -> None:
    result = demo("--models", str(tmp_path), "--seconds", "1")
    assert result.returncode == 1
    assert "build_models.py" in result.stderr
    broken = tmp_path / "broken"
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](broken)
    (broken / "detector" / "1" / "model.onnx").write_bytes(b"not onnx")
    result = demo("--models", str(broken), "--seconds", "1")
    assert result.returncode == 1
    assert "before it was ready" in result.stderr
    assert "detector" in result.stderr


def test_on_a_terminal_the_demo_serves_until_ctrl_c(samples: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(
            sys.executable,
            [sys.executable, str(EXAMPLES / "policies_demo.py"), "--models", str(samples), "--seconds", "0.3"],
        )
    try:
        shown = _read_until(terminal, "curl http://127.0.0.1:", 100)
        url = re.search(r"--url (http://127\.0\.0\.1:\d+)", shown)
        assert url is not None
        command = [sys.executable, "-m", "isochrone", "infer", "detector", "--json", "--url", url[1]]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert json.loads(result.stdout)["model"] == "detector"
        os.write(terminal, b"\x03")
        _read_until(terminal, "stopping", 60)
        status, child = _wait(child, 60), 0
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        if child:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        os.close(terminal)


@pytest.mark.parametrize(
    ("words", "number", "status"),
    [
        ("three workers start", signal.SIGINT, 0),
        ("by round_robin", signal.SIGINT, 0),
        ("by prequal", signal.SIGTERM, 143),
    ],
)
def test_the_demo_told_to_end_leaves_no_process(samples: Path, words: str, number: int, status: int) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "policies_demo.py"), "--models", str(samples), "--seconds", "1"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while words not in (line := process.stdout.readline()):
            assert line, "the demo ended too early"
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.communicate(timeout=100)
        assert process.returncode == status
    assert not [child for child in started if child.is_running()]


def test_the_demo_killed_leaves_no_process(samples: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "policies_demo.py"), "--models", str(samples), "--seconds", "1"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "ready:" not in (line := process.stdout.readline()):
            assert line, "the demo ended too early"
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert len(started) >= 3
    assert not alive


def _read_until(terminal: int, wanted: str, seconds: float) -> str:
    shown, ends = "", time.monotonic() + seconds
    while wanted not in shown:
        assert time.monotonic() < ends, f"{wanted!r} did not come:\n{shown}"
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode("utf-8", "replace")
    return shown


def _wait(child: int, seconds: float) -> int:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    raise AssertionError(f"the demo did not end {seconds} s after Ctrl-C")
