"""``isochrone bench`` that is interrupted: what was measured, and no process that stays."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
from bench_runs import start, successes, wait_until

from server_process import ServerProcess


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_shows_what_was_measured(server: ServerProcess, number: signal.Signals) -> None:
    before = successes(server, "double")
    words = ("--model", "double", "--rate", "50", "--warmup-seconds", "0", "--seconds", "600", "--processes", "2")
    process = start(f"http://{server.http_url}", *words, "--json")
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
