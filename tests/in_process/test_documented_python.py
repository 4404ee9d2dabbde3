"""The Python examples of README and docs/python-api.md, run as written, with free ports in place of 8000 to 8002.

A comment behind a ``print``, or comments at the end of a block, are what it prints. A block without ``block=False`` is
served until it is stopped; the blocks without ``serve`` are its clients.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import isochrone
from bench.ports import free_ports
from documented import ROOT, blocks

_OURS = [(page.relative_to(ROOT).as_posix(), text) for page, text in blocks("python") if "import isochrone\n" in text]
SERVING = [(page, text) for page, text in _OURS if "isochrone.serve(" in text and "block=False" not in text]
COMPLETE = [text for _, text in _OURS if "block=False" in text]
CLIENTS = [text for _, text in _OURS if "isochrone.serve(" not in text]

#: A control loop logs it where the machine is too slow for its deadlines, which no test may depend on.
_MISSED = re.compile(r"^a control loop's request failed: model=\S+ code=deadline_exceeded .*\n", re.MULTILINE)

Ports = tuple[int, int, int]


def prepared(text: str, ports: Ports) -> str:
    """The example, in which ``serve`` uses these ports unless it names others, and clients do, too."""
    http, grpc, metrics = ports
    chosen = f"http_port={http}, grpc_port={grpc}, metrics_port={metrics}"
    before = f"import functools, isochrone\nisochrone.serve = functools.partial(isochrone.serve, {chosen})\n"
    return before + text.replace("localhost:8000", f"localhost:{http}").replace("localhost:8001", f"localhost:{grpc}")


def expected(text: str) -> list[str]:
    return [found[1] for line in text.splitlines() if (found := re.search(r"(?:^|print\(.*\)  )# (.*)$", line))]


@contextmanager
def running(text: str, ports: Ports) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", prepared(text, ports)], stdout=subprocess.PIPE, text=True)
    try:
        with isochrone.Client(f"localhost:{ports[0]}") as client:
            client.wait_ready(60)
        yield
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output.splitlines()[-1] == "isochrone: stopped"
    finally:
        process.kill()
        process.communicate()


def ports() -> Ports:
    http, grpc, metrics = free_ports(3)
    return http, grpc, metrics


def check(text: str, chosen: Ports) -> None:
    result = subprocess.run(
        [sys.executable, "-c", prepared(text, chosen)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == expected(text)
    assert expected(text)
    assert _MISSED.sub("", result.stderr) == ""


def test_readme_and_the_page_show_the_same_three_lines() -> None:
    assert [page for page, _ in SERVING] == ["README.md", "docs/python-api.md"]
    assert SERVING[0][1] == SERVING[1][1]
    lines = [line for line in SERVING[0][1].splitlines() if line]
    assert lines[0] == "import isochrone"
    assert len(lines[1:]) == 3
    assert len(COMPLETE) >= 2
    assert len(CLIENTS) >= 3


def test_the_three_lines_and_their_clients() -> None:
    chosen = ports()
    with running(SERVING[0][1], chosen):
        for text in CLIENTS:
            check(text, chosen)


@pytest.mark.parametrize("number", range(len(COMPLETE)))
def test_an_example_that_serves_and_stops(number: int) -> None:
    check(COMPLETE[number], ports())
