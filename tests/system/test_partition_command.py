"""``isochrone partition`` on two real workers: measures, chooses, writes repositories that serve; bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

import isochrone
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.model_file import read_model, read_rows
from isochrone.optimize.partitioning.planning import Planner
from isochrone.optimize.partitioning.tiers import TierWorker
from isochrone.optimize.partitioning.writing import write_repositories
from server_process import ServerProcess, StartServer
from two_stage_net import late_input_net, residual_net

FLAGS = ("--model-control-mode", "explicit", "--allow-file-overrides")


@pytest.fixture(scope="module")
def workers(
    server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    empty = tmp_path_factory.mktemp("no_models")
    with server_factory(empty, *FLAGS) as edge, server_factory(empty, *FLAGS) as core:
        yield edge, core


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(residual_net().SerializeToString())
    return path


def partition(file: Path, *arguments: str, ok: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "isochrone", "partition", str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == ok, done.stderr
    return done.stdout, done.stderr


def places(workers: tuple[ServerProcess, ServerProcess]) -> tuple[str, ...]:
    return ("--edge", workers[0].http_url, "--core", workers[1].http_url)


def served(worker: ServerProcess) -> list[Any]:
    index = httpx.post(f"http://{worker.http_url}/v2/repository/index", trust_env=False).json()
    return [model for model in index if model["state"] == "READY"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "prices", "kind"),
    [
        (residual_net, ("--core-price", "1"), "edge"),
        (residual_net, ("--edge-price", "1"), "core"),
        (late_input_net, ("--edge-price", "1", "--gigabyte-price", "1e9"), "edge"),
    ],
)
def test_what_it_writes_computes_what_the_model_computes(
    workers: tuple[ServerProcess, ServerProcess],
    server_factory: StartServer,
    tmp_path: Path,
    make: Any,
    prices: tuple[str, ...],
    kind: str,
) -> None:
    file, target = tmp_path / "net.onnx", tmp_path / "divided"
    file.write_bytes(make().SerializeToString())
    output, _ = partition(file, *places(workers), *prices, "--cuts", "3", "--write", str(target), "--json")
    found = json.loads(output)
    assert found["chosen"] == kind
    assert found["meets_deadline"]
    assert {option["name"] for option in found["options"]} > {"edge", "core"}
    assert all(option["total_ms"] > 0 for option in found["options"])
    assert not served(workers[0])
    assert not served(workers[1])
    check_served(target, server_factory, file)


def check_served(target: Path, server_factory: StartServer, file: Path) -> None:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    rows = {
        value.name: random.standard_normal([2, *value.shape[1:]]).astype(np.float32) for value in session.get_inputs()
    }
    (wanted,) = session.run(None, rows)
    (output,) = [value.name for value in session.get_outputs()]
    with server_factory(target / "core") as core:
        for config in (target / "edge").glob("*/config.pbtxt"):
            text = config.read_text()
            if 'backend: "remote"' in text:
                start = text.index("string_value: ") + len("string_value: ")
                config.write_text(f'{text[:start]}"{core.http_url}"{text[text.index(chr(10), start) :]}')
        with server_factory(target / "edge") as edge, isochrone.Client(edge.http_url) as client:
            np.testing.assert_allclose(client.infer("net", rows)[output], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_every_option_that_was_measured_can_be_written_and_served(
    workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, net: Path, tmp_path: Path
) -> None:
    model = read_model(net)
    lines: list[str] = []
    with TierWorker("edge", workers[0].http_url) as edge, TierWorker("core", workers[1].http_url) as core:
        plan = Planner(model, read_rows(model, None), False, lines.append).plan(
            edge, core, [workers[1].http_url], [Encoding.PLAIN], 3
        )
    for number, planned in enumerate(each for each in plan.options if each.stages is not None):
        place = tmp_path / f"option-{number}"
        write_repositories(place, "net", model, plan, planned, ["127.0.0.1:1"], 4)
        check_served(place, server_factory, net)
    assert any(line.startswith("the link: ") for line in lines)


def test_a_deadline_that_cannot_be_met_writes_nothing(
    workers: tuple[ServerProcess, ServerProcess], net: Path, tmp_path: Path
) -> None:
    target = tmp_path / "divided"
    output, _ = partition(
        net, *places(workers), "--deadline", "1us", "--cuts", "1", "--write", str(target), "--json", ok=1
    )
    found = json.loads(output)
    assert not found["meets_deadline"]
    assert found["reason"].startswith("no option meets 0.00 ms; the closest misses it by")
    assert found["written"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_an_existing_directory_is_kept(workers: tuple[ServerProcess, ServerProcess], net: Path, tmp_path: Path) -> None:
    (tmp_path / "divided").mkdir()
    (tmp_path / "divided" / "mine").write_text("x")
    _, error = partition(net, *places(workers), "--cuts", "1", "--write", str(tmp_path / "divided"), ok=1)
    assert "exists: name another directory" in error
    assert (tmp_path / "divided" / "mine").read_text() == "x"


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"no model", (), "not a readable ONNX model"),
        (b"", (), "not a readable ONNX model"),
        (None, ("--data", "DATA"), "expected the shape [batch, 3, 16, 16], given [4, 3, 8, 8]"),
        (None, ("--deadline", "20"), "--deadline: expected a time above 0 with its unit"),
        (None, ("--max-error", "200%"), "--max-error: expected a share"),
        (None, ("--core", ""), "--core: expected the address of a worker, or --tiers NEAR,FAR"),
        (None, ("--tiers", "edge,core"), "--tiers: expected no --edge or --core beside it"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    tmp_path: Path, content: bytes | None, arguments: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(residual_net().SerializeToString() if content is None else content)
    np.savez(tmp_path / "rows.npz", image=np.zeros((4, 3, 8, 8), np.float32))
    given = [argument if argument != "DATA" else str(tmp_path / "rows.npz") for argument in arguments]
    _, error = partition(file, "--edge", "127.0.0.1:1", "--core", "127.0.0.1:1", *given, ok=1)
    assert words in error
    assert error.count("\n") == 1, error


def test_a_tier_that_is_not_there(net: Path, workers: tuple[ServerProcess, ServerProcess]) -> None:
    _, error = partition(net, "--edge", workers[0].http_url, "--core", "127.0.0.1:1", ok=1)
    assert "core: http://127.0.0.1:1 does not answer" in error
    assert not served(workers[0])


@pytest.mark.long
def test_a_tier_that_disappears_while_it_is_measured(
    net: Path, workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with server_factory(empty, *FLAGS, check_exit=False) as core:
        command = [sys.executable, "-m", "isochrone", "partition", str(net), "--edge", workers[0].http_url]
        command += ["--core", core.http_url, "--write", str(tmp_path / "divided")]
        lines = []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            for line in running.stderr:
                lines.append(line)
                if " on the edge, " in line:
                    core.process.send_signal(signal.SIGKILL)
        assert running.returncode == 1
        assert "core: http" in lines[-1]
        assert "does not answer" in lines[-1]
    assert not (tmp_path / "divided").exists()
    assert not served(workers[0])
