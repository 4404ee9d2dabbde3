"""``isochrone up`` as a newcomer uses it: the bundled fleet, the commands it names, its end, and its refusals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from isochrone.control.fleet.bundled import write_bundled

SECONDS = 60.0
ISOCHRONE = (sys.executable, "-m", "isochrone")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _fleet(directory: Path, workers: int = 2) -> Path:
    """The bundled fleet on ports that no other test has."""
    path = write_bundled(directory)
    text = path.read_text()
    for old, new in (
        ("127.0.0.1:8003", f"127.0.0.1:{_free_port()}"),
        ('"127.0.0.1:8000", metrics_port: 9000', '"127.0.0.1:0", metrics_port: 0'),
        ("workers: 3", f"workers: {workers}"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


class Up:
    """One ``isochrone up`` and what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def wait_for(self, text: str) -> str:
        ends = time.monotonic() + SECONDS
        while text not in (said := self.log.read_text()):
            assert time.monotonic() < ends, said
            assert self.process.poll() is None, said
            time.sleep(0.02)
        return said

    def commands(self) -> list[list[str]]:
        """The commands it tells a newcomer to try."""
        said = self.wait_for("Ctrl-C stops everything")
        return [line.split()[1:] for line in said.splitlines() if line.startswith("  isochrone ")]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def _up(*words: str, log: Path) -> Iterator[Up]:
    with log.open("wb") as file, subprocess.Popen([*ISOCHRONE, "up", *words], stdout=file, stderr=file) as process:
        started = Up(process, log)
        try:
            yield started
        finally:
            left = started.children() if process.poll() is None else []
            process.kill()
            process.wait()
            psutil.wait_procs(left, timeout=SECONDS)


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ISOCHRONE, *words], capture_output=True, text=True, timeout=SECONDS, check=False)


def test_up_infer_rollout_and_the_end(tmp_path: Path) -> None:
    _fleet(tmp_path / "fleet")
    with _up("--state", str(tmp_path / "fleet"), log=tmp_path / "up.log") as up:
        commands = up.commands()
        assert [words[0] for words in commands] == ["infer", "rollout", "rollout", "status", "top"]
        # What it tells to do works as it is printed. top is live: it is tried elsewhere.
        for words in commands[:-1]:
            ended = _run(*words)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        said = up.wait_for("models committed: epoch 3")
        for line in ("controller control-1 ready", "worker cpu-2 ready", "gateway gw ready"):
            assert said.count(line) == 1
        assert "models committed: epoch 2 (detector 2, pipeline 2, preprocess 2)" in said
        # A second one for the same state is refused, and harms nothing.
        refused = _run("up", str(tmp_path / "fleet" / "fleet.yaml"))
        assert refused.returncode == 1
        assert f"up already, by process {up.process.pid}" in refused.stderr
        children = up.children()
        assert len(children) >= 4
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(SECONDS) == 0
        assert not any(child.is_running() for child in children)
        last = up.log.read_text().splitlines()[-4:]
        assert last == ["stopping gw", "stopping cpu-1, cpu-2", "stopping control-1", "stopped"]


def test_a_supervisor_that_is_killed_leaves_nothing_and_the_fleet_goes_on(tmp_path: Path) -> None:
    path = _fleet(tmp_path, workers=1)
    with _up(str(path), log=tmp_path / "first.log") as up:
        up.commands()
        children = up.children()
        os.kill(up.process.pid, signal.SIGKILL)
        gone, left = psutil.wait_procs(children, timeout=SECONDS)
        assert len(gone) >= 3
        assert not left
    with _up(str(path), log=tmp_path / "second.log") as up:
        commands = up.commands()
        assert "goes on at generation 1" in up.log.read_text()
        ended = _run(*commands[0])
        assert ended.returncode == 0, ended.stdout + ended.stderr
        up.process.terminate()
        assert up.process.wait(SECONDS) == 0


def test_a_port_that_is_taken_is_told_in_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    path = _fleet(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        text = path.read_text().replace('"127.0.0.1:0", metrics_port', f'"127.0.0.1:{port}", metrics_port')
        path.write_text(text)
        ended = _run("up", str(path))
    assert ended.returncode == 1
    expected = f"gateways.gw.listen: expected a free port, given 127.0.0.1:{port}, which another process has"
    assert ended.stderr == f"isochrone up: {path}: {expected}\n"
    assert not list((tmp_path / "state").glob("logs/*"))
