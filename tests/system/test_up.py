"""``isochrone up`` as a newcomer uses it: the bundled fleet, the commands it names, its end, and its refusals."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from up_process import SECONDS, bundled_fleet, isochrone, start_up

pytestmark = pytest.mark.long


def test_up_infer_rollout_and_the_end(tmp_path: Path) -> None:
    bundled_fleet(tmp_path / "fleet")
    with start_up("--state", str(tmp_path / "fleet"), log=tmp_path / "up.log") as up:
        commands = up.commands()
        assert [words[0] for words in commands] == ["infer", "rollout", "rollout", "status", "top"]
        # What it tells to do works as it is printed. top is live: it is tried elsewhere.
        for words in commands[:-1]:
            ended = isochrone(*words)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        said = up.wait_for("models committed: epoch 3")
        for line in ("controller control-1 ready", "worker cpu-2 ready", "gateway gw ready"):
            assert said.count(line) == 1
        assert "models committed: epoch 2 (detector 2, pipeline 2, preprocess 2)" in said
        # A second one for the same state is refused, and harms nothing.
        refused = isochrone("up", str(tmp_path / "fleet" / "fleet.yaml"))
        assert refused.returncode == 1
        assert f"up already, by process {up.process.pid}" in refused.stderr
        children = up.children()
        assert len(children) >= 4
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(SECONDS) == 0
        assert not any(child.is_running() for child in children)
        last = up.log.read_text().splitlines()[-4:]
        assert last == ["stopping gw", "stopping cpu-1, cpu-2", "stopping control-1", "stopped"]


def test_a_port_that_is_taken_is_told_in_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    path = bundled_fleet(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        text = path.read_text().replace('"127.0.0.1:0", metrics_port', f'"127.0.0.1:{port}", metrics_port')
        path.write_text(text)
        ended = isochrone("up", str(path))
    assert ended.returncode == 1
    expected = f"gateways.gw.listen: expected a free port, given 127.0.0.1:{port}, which another process has"
    assert ended.stderr == f"isochrone up: {path}: {expected}\n"
    assert not list((tmp_path / "state").glob("logs/*"))
