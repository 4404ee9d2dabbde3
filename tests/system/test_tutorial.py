"""docs/tutorial.md, from the first command to the last: every file and command as written, every output as shown.

Blocks are taken in their order. A block of Python or YAML is the file that its first line names. The commands of an
``sh`` block run one after the other; ``isochrone serve``, ``isochrone up`` and ``load.py`` stay in the background. A
``text`` block is the output of the commands before it: numbers, addresses, users and paths are not compared, and ``…``
stands for lines or the rest of a line that it leaves out.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.ports import free_ports
from documented import check_installable, curl, lines_of, tutorial_blocks, words_of
from up_process import SECONDS

_FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
#: In place of what differs from run to run.
_VARYING = (
    (re.compile(r"\d+(\.\d+)?( ?(ms|s|min)\b)?"), "#"),
    (re.compile(r"\S+@\S+"), "USER"),
    (re.compile(r"sqlite:\S+"), "STORE"),
    (re.compile(r"[▏▎▍▌▋▊▉█]+"), ""),
    # A slow machine sends too few requests to be sure within max_seconds.
    (re.compile(r"not shown worse in #"), "not worse"),
    (re.compile(r"\s+"), " "),
)


def comparable(line: str) -> str:
    for pattern, replacement in _VARYING:
        line = pattern.sub(replacement, line)
    return line.strip()


def missing_line(shown: str, output: str) -> str:
    """The first shown line that the output does not have where it should; "": it has all of them."""
    actual = [comparable(line) for line in output.splitlines()]
    for line in filter(None, (comparable(line) for line in shown.splitlines())):
        begins, is_cut, _ = line.partition("…")
        found = next(
            (at for at, each in enumerate(actual) if each == line or (is_cut and each.startswith(begins.strip()))), None
        )
        if line == "…":
            continue
        if found is None:
            return line
        actual = actual[found + 1 :]
    return ""


class Reader:
    """Somebody who follows the tutorial in an empty directory, on free ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._http, self._control = free_ports(2)
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(directory / "state-home"),
            "COLUMNS": "300",
        }

    def write(self, name: str, text: str) -> None:
        if name == "fleet.yaml":
            text += f'control: {{listen: "127.0.0.1:{self._control}"}}\n'
            text += f'gateways: {{gw: {{listen: "127.0.0.1:{self._http}", metrics_port: 0}}}}\n'
        (self._directory / name).write_text(text.replace("localhost:8000", f"127.0.0.1:{self._http}"))

    def run(self, command: str) -> str:
        """What the command prints; of one that goes on, nothing."""
        words = words_of(command)
        match words[:2]:
            case ["pip", "install"]:
                check_installable(command)
            case ["mkdir" | "cd", _]:
                pass
            case ["isochrone", "serve"]:
                ports = f"--http-port {self._http} --grpc-port 0 --metrics-port 0 --host 127.0.0.1"
                self._start("serve", f"{command} {ports}", lambda log: " ready " in log)
            case ["isochrone", "up"]:
                self._stop("serve")
                self._start("up", command, lambda log: "Ctrl-C stops everything" in log)
                assert "Fleet tutorial is up: 1 gateway, 2 workers, serving scorer 1." in self.log("up")
            case ["python", "load.py"]:
                self._start("load", command, lambda log: "version 1" in log)
            case ["curl", *_]:
                answer = curl([word.replace("localhost:8000", f"127.0.0.1:{self._http}") for word in words[1:]])
                return f"{answer.content.decode()}\n"
            case _:
                return self._finish(command)
        return ""

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def wait_for_log(self, name: str, holds: Callable[[str], bool]) -> None:
        ends = time.monotonic() + SECONDS
        while not holds(self.log(name)):
            assert time.monotonic() < ends, self.log(name)
            assert self._running[name].poll() is None, self.log(name)
            time.sleep(0.05)

    def close(self) -> None:
        for name in list(self._running):
            self._stop(name)

    def _finish(self, command: str) -> str:
        command = command.replace("localhost:8000", f"127.0.0.1:{self._http}")
        if "serve" in self._running and "isochrone infer" in command:
            command += f" --url http://127.0.0.1:{self._http}"
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout if ended.stdout.endswith("\n") else f"{ended.stdout}\n"

    def _start(self, name: str, command: str, is_ready: Callable[[str], bool]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self._directory, env=self._environment, stdout=log, stderr=log
            )
        self.wait_for_log(name, is_ready)

    def _stop(self, name: str) -> None:
        """By Ctrl-C; whatever is left is killed."""
        process = self._running.pop(name)
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()
            psutil.wait_procs(children, timeout=SECONDS)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    output = ""
    try:
        for language, text in tutorial_blocks():
            if match := _FILE.match(text):
                reader.write(match[1], text)
            elif language == "sh":
                output = "".join(reader.run(line) for line in lines_of(text))
            elif text.startswith("{'version"):
                # Of load.py, which prints every two seconds.
                last = comparable(text.splitlines()[-1])
                reader.wait_for_log("load", lambda log, last=last, text=text: not missing_line(text, log))  # type: ignore[misc]
                assert comparable(reader.log("load").splitlines()[-1]) == last
            else:
                assert missing_line(text, output) == "", output
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("r2 done at 473 ms: served everywhere", ""),
        ("r2 done at 2 s: served …", ""),
        ("…\nr2 done at 473 ms: served everywhere\n…\nby user@host", ""),
        ("by me@here\nr2 done at 473 ms: served everywhere", "r# done at #: served everywhere"),
        ("r2 aborted", "r# aborted"),
        ("r2 done …\nserved …", "served …"),
    ],
)
def test_outputs_are_compared_line_by_line(shown: str, missing: str) -> None:
    assert missing_line(shown, "begin\nr2 done at 1.5 s: served   everywhere\nby root@vm\n") == missing


def test_a_verdict_by_time_counts_as_one_by_numbers() -> None:
    shown = "r3 canary at 25%: passed: scorer: not worse: …"
    assert missing_line(shown, "r3 canary at 25%: passed: scorer: not shown worse in 20 s: p95 4.01 ms") == ""
    assert missing_line(shown, "r3 canary at 25%: passed: scorer: not worse: p95 4.01 ms") == ""
    assert missing_line(shown, "r3 canary at 25%: failed: scorer: worse: p95 4.01 ms")
