"""Divisions with encoded features, as ``isochrone partition`` writes them: both repositories serve within the error."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import zstandard
from onnx import helper

import isochrone
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.model_file import free_rows
from isochrone.optimize.partitioning.planning import Planner
from isochrone.optimize.partitioning.tiers import TierWorker
from isochrone.optimize.partitioning.writing import write_repositories
from server_process import ServerProcess, StartServer
from two_stage_net import model_of, residual_net

assert zstandard.__version__
FLAGS = ("--model-control-mode", "explicit", "--allow-file-overrides")
MOST_ERROR = 0.05
ROWS = 8

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def workers(
    server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    empty = tmp_path_factory.mktemp("no_models")
    with server_factory(empty, *FLAGS) as edge, server_factory(empty, *FLAGS) as core:
        yield edge, core


def images(size: int) -> dict[str, Any]:
    return {"image": np.random.default_rng(4).standard_normal((ROWS, 3, size, size)).astype(np.float32)}


def relative_error(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def point_at(core: ServerProcess, repository: Path) -> None:
    for config in repository.glob("*/config.pbtxt"):
        config.write_text(config.read_text().replace('string_value: "127.0.0.1:1"', f'string_value: "{core.http_url}"'))


def test_every_encoding_is_served_within_its_error(
    workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, tmp_path: Path
) -> None:
    model = residual_net(blocks=1)
    samples = images(16)
    lines: list[str] = []
    with TierWorker("edge", workers[0].http_url) as edge, TierWorker("core", workers[1].http_url) as core:
        planner = Planner(model, samples, free_rows(model), lines.append)
        plan = planner.plan(edge, core, list(Encoding), 8, with_zstd=True)
    assert not [line for line in lines if "left out" in line]
    found = {planned.option.name: planned for planned in plan.options}
    ways = ("plain", "zstd", "fp16", "fp16+zstd", "int8", "int8+zstd")
    assert {f"b0 {way}" for way in ways} <= found.keys()
    for way in ("", "fp16", "int8"):
        before, after = found[f"b0 {way or 'plain'}"].option, found[f"b0 {way}+zstd" if way else "b0 zstd"].option
        assert after.sent_bytes < before.sent_bytes
        assert after.edge_seconds >= before.edge_seconds
        assert after.error == before.error
    for number, planned in enumerate(found.values()):
        name = f"net_{number}"
        write_repositories(tmp_path / name, name, model, plan, planned, ["127.0.0.1:1"], ROWS)
        for tier in ("edge", "core"):
            shutil.copytree(tmp_path / name / tier, tmp_path / "all" / tier, dirs_exist_ok=True)
        texts = "".join(path.read_text() for path in (tmp_path / name / "edge").glob("*/config.pbtxt"))
        assert ('key: "compression"' in texts) == bool(planned.compression)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    # The rows that the stated error is of: the second half.
    rows = {name: array[ROWS // 2 :] for name, array in samples.items()}
    (wanted,) = session.run(None, rows)
    with server_factory(tmp_path / "all" / "core") as core_server:
        point_at(core_server, tmp_path / "all" / "edge")
        with server_factory(tmp_path / "all" / "edge") as server, isochrone.Client(server.http_url) as client:
            for number, (name, planned) in enumerate(found.items()):
                error = relative_error(client.infer(f"net_{number}", rows)["scores"], wanted)
                assert error <= planned.option.error * 1.01 + 1e-5, name
                # An encoding that changes nothing would be no encoding.
                assert (error > 1e-5) == (planned.option.error > 0), name


def small_then_heavy_net(size: int) -> Any:
    """Pictures are made small on the way to most of the work: an early cut sends few bytes, and saves the edge time."""
    random = np.random.default_rng(3)
    nodes = [
        helper.make_node("AveragePool", ["image"], ["pooled"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Relu", ["pooled"], ["h0"]),
    ]
    weights, channels = {}, [3, 256, 256, 256]
    for number, (inside, outside) in enumerate(pairwise(channels)):
        weights[f"w{number}"] = (random.standard_normal((outside, inside, 3, 3)) / 3 / inside**0.5).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"h{number}", f"w{number}"], [f"c{number}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"h{number + 1}"]))
    nodes += [
        helper.make_node("GlobalAveragePool", ["h3"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["scores"]),
    ]
    return model_of(nodes, {"image": ["batch", 3, size, size]}, {"scores": ["batch", 256]}, weights)


def test_the_command_writes_an_encoding_within_the_error_that_it_is_given(
    workers: tuple[ServerProcess, ServerProcess], server_factory: StartServer, tmp_path: Path
) -> None:
    """Bytes are expensive, and so are the edge's seconds: an early cut that sends little is the cheapest."""
    file, target = tmp_path / "net.onnx", tmp_path / "divided"
    file.write_bytes(small_then_heavy_net(128).SerializeToString())
    samples = images(128)
    np.savez(tmp_path / "rows.npz", **samples)
    command = [sys.executable, "-m", "isochrone", "partition", str(file), "--data", str(tmp_path / "rows.npz")]
    command += ["--edge", workers[0].http_url, "--core", workers[1].http_url, "--cuts", "2", "--json"]
    command += ["--max-error", f"{MOST_ERROR:.0%}", "--edge-price", "2", "--gigabyte-price", "1000"]
    command += ["--endpoints", "127.0.0.1:1", "--write", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_name = {option["name"]: option for option in found["options"]}
    chosen = by_name[found["chosen"]]
    assert found["chosen"].split()[0] in ("pooled", "h0")
    assert 0 < chosen["error"] <= MOST_ERROR
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    rows = {name: array[ROWS // 2 :] for name, array in samples.items()}
    (wanted,) = session.run(None, rows)
    with server_factory(target / "core") as core:
        point_at(core, target / "edge")
        with server_factory(target / "edge") as edge, isochrone.Client(edge.http_url) as client:
            assert relative_error(client.infer("net", rows)["scores"], wanted) <= chosen["error"] * 1.01 + 1e-5
