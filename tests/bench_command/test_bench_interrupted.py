"""``isochrone bench`` that is interrupted: what was measured, and no process that stays."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from bench_runs import start, successes, wait_until

from isochrone.bench.results.outcomes import OK, read_run
from server_process import ServerProcess


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_shows_and_keeps_what_was_measured(
    server: ServerProcess, number: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    before = successes(server, "double")
    words = ("--model", "double", "--rate", "50", "--warmup-seconds", "0", "--seconds", "600", "--processes", "2")
    process = start(f"http://{server.http_url}", *words, "--json", "--output", str(path))
    try:
        wait_until(lambda: successes(server, "double") > before + 10)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, errors
    figures = json.loads(output)
    assert figures["interrupted"] is True
    assert figures["total"]["outcomes"]["ok"] > 10
    assert 0 < figures["seconds"] < 600
    run = read_run(path)
    # Neither a failure that the interruption made, nor a request that the worker did not answer.
    assert (run.outcomes.outcome == OK).all(), run.errors
    assert len(run.outcomes) == figures["total"]["outcomes"]["ok"]
    answered = successes(server, "double") - before
    assert len(run.outcomes) <= answered <= len(run.outcomes) + figures["unfinished"] + 10, "those after its instant"
    assert (run.outcomes.intended_ns < run.seconds * 1e9).all()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert len(children) == 2
    assert not alive


@pytest.mark.long
def test_no_generator_outlives_the_command(server: ServerProcess) -> None:
    before = successes(server, "double")
    words = ("--model", "double", "--rate", "50", "--warmup-seconds", "0", "--seconds", "600")
    process = start(f"http://{server.http_url}", *words)
    try:
        wait_until(lambda: successes(server, "double") > before)
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert len(children) == 1
    assert not alive


@pytest.mark.long
def test_a_generator_that_was_stopped_says_so(server: ServerProcess, tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT, as a terminal or a debugger sends them: not a slow server."""
    path = tmp_path / "run.npz"
    before = successes(server, "double")
    words = ("--model", "double", "--rate", "50", "--warmup-seconds", "0", "--seconds", "4", "--output", str(path))
    process = start(f"http://{server.http_url}", *words)
    try:
        wait_until(lambda: successes(server, "double") > before)
        (child,) = psutil.Process(process.pid).children(recursive=True)
        child.suspend()
        time.sleep(1)
        child.resume()
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert max(ends - begins for begins, ends in read_run(path).stalls) >= 0.9e9
    assert "The generator stood still" in output
