"""``isochrone partition`` on two real workers: measures, chooses, writes repositories that serve; bad input."""

from __future__ import annotations

import json
import shutil
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
from onnx import ModelProto

import isochrone
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.model_file import free_rows, read_rows
from isochrone.optimize.partitioning.planning import Planner
from isochrone.optimize.partitioning.tiers import TierWorker
from isochrone.optimize.partitioning.writing import write_repositories
from server_process import ServerProcess, StartServer
from two_stage_net import (
    flat_output_net,
    late_input_net,
    list_net,
    residual_net,
    scaled_net,
    sequence_net,
    shape_net,
    text_net,
)

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
        reach(target / "edge", core)
        with server_factory(target / "edge") as edge, isochrone.Client(edge.http_url) as client:
            np.testing.assert_allclose(client.infer("net", rows)[output], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_kept_divisions_are_served_and_compute_the_same(
    workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, tmp_path: Path
) -> None:
    file, target = tmp_path / "net.onnx", tmp_path / "divided"
    model = residual_net()
    file.write_bytes(model.SerializeToString())
    flags = ("--cuts", "3", "--max-error", "5%", "--write", str(target), "--keep-memory", "1MiB", "--json")
    output, _ = partition(file, *places(workers), *flags)
    found = json.loads(output)
    stay = found["kept"]
    by_name = {option["division"]: option for option in found["options"]}
    assert set(stay) == {name for name, option in by_name.items() if option["allowed"]}
    assert {"edge", "core"} < set(stay)
    assert any(name.endswith("-fp16") for name in stay)
    assert by_name[stay[0]]["name"] == found["chosen"]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    rows = values_of({"image": [2, 3, 16, 16]})
    (wanted,) = session.run(None, rows)
    with server_factory(target / "core") as core:
        reach(target / "edge", core)
        with server_factory(target / "edge") as edge, isochrone.Client(edge.http_url) as client:
            for name in (*stay, "split", ""):
                given = {"x-isochrone-division": name} if name else None
                answer = client.infer("net", rows, headers=given)["scores"]
                error = np.linalg.norm(answer - wanted) / np.linalg.norm(wanted)
                # Encodings were measured with other rows.
                assert error < (0.1 if name not in ("edge", "core") else 1e-4), name


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--keep-memory", "1MiB"), "--keep-memory: expected --write DIR beside it"),
        (("--keep-memory", "much", "--write", "there"), "--keep-memory: expected a number of bytes"),
    ],
)
def test_wrong_flags_of_kept_divisions_are_named(net: Path, flags: tuple[str, ...], named: str) -> None:
    _, problem = partition(net, "--edge", "127.0.0.1:1", "--core", "127.0.0.1:1", *flags, ok=1)
    assert named in problem


@pytest.mark.long
def test_too_little_memory_for_the_chosen_division_writes_nothing(
    workers: tuple[ServerProcess, ServerProcess], net: Path, tmp_path: Path
) -> None:
    target = tmp_path / "written" / "divided"
    _, problem = partition(net, *places(workers), "--cuts", "1", "--write", str(target), "--keep-memory", "100B", ok=1)
    assert "--keep-memory: expected at least the" in problem
    assert not target.parent.exists() or not list(target.parent.iterdir())


def reach(edge: Path, core: ServerProcess) -> None:
    """Lets the remote models of a written repository send to a core."""
    for config in edge.glob("*/config.pbtxt"):
        text = config.read_text()
        if 'backend: "remote"' in text:
            start = text.index("string_value: ", text.index('key: "endpoints"')) + len("string_value: ")
            config.write_text(f'{text[:start]}"{core.http_url}"{text[text.index(chr(10), start) :]}')


#: By name: the model, its rows (None: made), and rows of another number or length that the written models get.
NETS: dict[str, tuple[ModelProto, Any, Any]] = {
    "residual": (residual_net(), None, {"image": [3, 3, 16, 16]}),
    "late": (late_input_net(), None, {"x": [2, 4], "late": [2, 4]}),
    "flat": (flat_output_net(), None, {"x": [3, 4]}),
    "shape": (shape_net(), None, {"x": [3, 4]}),
    "fixed_shape": (shape_net(2), None, {"x": [2, 4]}),
    "fixed_rows": (residual_net(rows=4), None, {"image": [4, 3, 16, 16]}),
    "sequence": (sequence_net(), {"x": [4, 5, 4]}, {"x": [2, 7, 4]}),
    "scaled": (scaled_net(), None, {"x": [3, 4], "factor": [1]}),
    "list": (list_net(), None, {"x": [2, 4]}),
}


def values_of(shapes: dict[str, list[int]]) -> dict[str, Any]:
    random = np.random.default_rng(5)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.long
def test_every_option_that_was_measured_can_be_written_and_served(
    workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, tmp_path: Path
) -> None:
    """All options of all models in one pair of repositories, so that two servers are enough."""
    expected: dict[str, tuple[Any, dict[str, Any]]] = {}
    crossed: dict[str, list[str]] = {}
    lines: list[str] = []
    for kind, (model, sample, asked) in NETS.items():
        samples = values_of(sample) if sample else read_rows(model, None)
        with TierWorker("edge", workers[0].http_url) as edge, TierWorker("core", workers[1].http_url) as core:
            plan = Planner(model, samples, free_rows(model), lines.append).plan(edge, core, [Encoding.PLAIN], 6)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        inputs = values_of(asked)
        for number, planned in enumerate(plan.options):
            name = f"{kind}_{number}"
            write_repositories(tmp_path / name, name, model, plan, planned, ["127.0.0.1:1"], 4)
            for tier in ("edge", "core"):
                shutil.copytree(tmp_path / name / tier, tmp_path / "all" / tier, dirs_exist_ok=True)
            expected[name] = (session.run(None, inputs)[0], inputs)
        crossed[kind] = [each.option.name for each in plan.options if each.stages is not None]
        assert crossed[kind], kind
    assert any(line.startswith("the link: ") for line in lines)
    assert not [line for line in lines if "left out" in line]
    # What has no rows in front cannot be batched; a model of a fixed size may send a shape.
    assert crossed["late"] == ["a+late plain", "b+late plain", "c+late plain"]
    assert crossed["shape"] == ["a plain", "b plain"]
    assert "a+size plain" in crossed["fixed_shape"]
    assert crossed["sequence"] == ["a+x plain", "b plain", "c plain"]
    with server_factory(tmp_path / "all" / "core") as core_server:
        point_at(core_server, tmp_path / "all" / "edge")
        with server_factory(tmp_path / "all" / "edge") as server, isochrone.Client(server.http_url) as client:
            for name, (wanted, inputs) in expected.items():
                (found,) = client.infer(name, inputs).values()
                # A server shows a column where a model has one number for each row.
                shown = wanted if wanted.ndim > 1 else wanted[:, None]
                np.testing.assert_allclose(found, shown, rtol=1e-4, atol=1e-5, err_msg=name, strict=True)


def point_at(core: ServerProcess, repository: Path) -> None:
    for config in repository.glob("*/config.pbtxt"):
        config.write_text(config.read_text().replace('string_value: "127.0.0.1:1"', f'string_value: "{core.http_url}"'))


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
        (list_net(True).SerializeToString(), (), "output 'parts' is a sequence, a map or an optional value"),
        (text_net().SerializeToString(), (), "input 'x' has strings: only models of numbers can be divided"),
        (None, ("--name", "../x"), "model name: expected one directory name"),
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


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_ended_command_unloads_its_models(
    net: Path, workers: tuple[ServerProcess, ServerProcess], number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "isochrone", "partition", str(net), *places(workers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if " on the edge, " in line:
                running.send_signal(number)
                break
        running.communicate(timeout=300)
    assert running.returncode == 128 + number
    assert not served(workers[0])
    assert not served(workers[1])


@pytest.mark.long
def test_models_above_the_workers_limit_name_its_flag(
    workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, tmp_path: Path
) -> None:
    empty, net = tmp_path / "empty", tmp_path / "net.onnx"
    empty.mkdir()
    net.write_bytes(residual_net(channels=128, size=8).SerializeToString())
    with server_factory(empty, *FLAGS, "--max-body-bytes", "2000000") as core:
        arguments = ("--edge", workers[0].http_url, "--core", core.http_url, "--cuts", "3", "--json")
        output, error = partition(net, *arguments)
    assert "core" not in {option["name"] for option in json.loads(output)["options"]}
    (line,) = [line for line in error.splitlines() if line.startswith("core is left out: ")]
    assert "--max-body-bytes" in line


@pytest.mark.long
def test_endpoints_are_written_and_not_measured(
    workers: tuple[ServerProcess, ServerProcess], net: Path, tmp_path: Path
) -> None:
    target = tmp_path / "divided"
    several = ("--endpoints", "core-1.invalid:8000,core-2.invalid:8000", "--edge-price", "1")
    partition(net, *places(workers), *several, "--cuts", "1", "--write", str(target))
    text = (target / "edge" / "net" / "config.pbtxt").read_text()
    assert '"core-1.invalid:8000,core-2.invalid:8000"' in text
