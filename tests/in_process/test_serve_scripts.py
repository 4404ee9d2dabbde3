"""Scripts that serve: stopped by a signal, ended without a stop, and ended by an exception."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import isochrone
from bench.ports import free_ports

SCRIPT = """
import atexit, sys
import isochrone

class Double:
    def infer(self, inputs):
        return {"y": inputs["x"] * 2}

    def close(self):
        print("closed", flush=True)

server = isochrone.serve(Double, inputs={"x": "FP32[3]"}, http_port=PORT, grpc_port=0, metrics_port=0)
print("after", server.is_running, flush=True)
"""


@contextmanager
def start(directory: Path, source: str, port: int) -> Iterator[subprocess.Popen[str]]:
    script = directory / "script.py"
    script.write_text(textwrap.dedent(source).replace("PORT", str(port)))
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(script)], stdout=pipe, stderr=pipe, text=True, cwd=directory)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_script_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    (port,) = free_ports(1)
    with start(tmp_path, SCRIPT, port) as process, isochrone.Client(f"localhost:{port}") as client:
        client.wait_ready(60)
        assert client.infer("Double", {"x": np.ones(3, np.float32)})["y"].tolist() == [2, 2, 2]
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith(f"isochrone: serving Double at http://127.0.0.1:{port} and grpc://127.0.0.1:")
    assert lines[0].endswith("(Ctrl-C stops)")
    assert lines[1:] == ["closed", "isochrone: stopped", "after False"]
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_script_that_runs_an_event_loop_is_stopped_by_one_signal(tmp_path: Path) -> None:
    source = """
    import asyncio, isochrone
    async def main():
        isochrone.serve(lambda x: {"y": x}, name="same", inputs={"x": "FP32[3]"}, http_port=PORT, grpc_port=0,
                        metrics_port=0)
    asyncio.run(main())
    """
    (port,) = free_ports(1)
    with start(tmp_path, source, port) as process:
        with isochrone.Client(f"localhost:{port}") as client:
            client.wait_ready(60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == "isochrone: stopped"


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_a_script_that_ends_without_stop_ends_its_server(tmp_path: Path, end: str, status: int) -> None:
    source = SCRIPT.replace("metrics_port=0)", "metrics_port=0, block=False)") + end + "\n"
    with start(tmp_path, source, 0) as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert output.splitlines() == ["after True", "closed"]
    assert ("ZeroDivisionError" in errors) is (status == 1)


def test_a_server_that_blocks_another_thread_ends_with_the_main_thread(tmp_path: Path) -> None:
    source = """
    import threading, urllib.request, isochrone
    def run():
        isochrone.serve(lambda x: {"y": x}, name="same", inputs={"x": "FP32[3]"}, http_port=PORT, grpc_port=0,
                        metrics_port=0)
    threading.Thread(target=run).start()
    with isochrone.Client("localhost:PORT") as client:
        client.wait_ready(60)
    """
    (port,) = free_ports(1)
    with start(tmp_path, source, port) as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == "isochrone: stopped"


def test_a_port_in_use_ends_a_script_with_the_argument_to_change(tmp_path: Path) -> None:
    with isochrone.serve(
        lambda x: {"y": x}, name="same", inputs={"x": "FP32[1]"}, block=False, http_port=0, grpc_port=0, metrics_port=0
    ) as server:
        port = int(server.http_url.rpartition(":")[2])
        with start(tmp_path, SCRIPT, port) as process:
            output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == "closed\n"
    assert errors.splitlines()[-1].endswith(
        f"isochrone.serve: http_port: expected a free port (0 chooses one), given {port} on 127.0.0.1: address already"
        " in use"
    )
