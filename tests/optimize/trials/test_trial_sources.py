"""The version that a search begins from, and the configuration of what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.optimize.searching.candidate import OPENVINO, RunSettings
from isochrone.optimize.trials.origins import REPORT_FILE, REPORTS, origin_of
from isochrone.optimize.trials.source import config_text, of_file, of_repository


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "models" / "m"
    for version in (1, 2, 3):
        (directory / str(version)).mkdir(parents=True)
        (directory / str(version) / "model.onnx").write_bytes(b"%d" % version)
    return directory


def write_report(model: Path, version: int) -> None:
    folder = model.parent / REPORTS / model.name / str(version)
    folder.mkdir(parents=True)
    origin = origin_of(model / str(version) / "model.onnx", model / "1" / "model.onnx")
    (folder / REPORT_FILE).write_text(json.dumps({"origin": origin}))


def test_the_newest_version_that_was_not_optimized_is_the_reference(model: Path) -> None:
    assert of_repository(model.parent, "m").version == 3
    write_report(model, 3)
    assert of_repository(model.parent, "m").version == 2
    assert of_repository(model.parent, "m", 3).version == 3
    with pytest.raises(ConfigError, match="a version of 'm': 1, 2, 3, given 4"):
        of_repository(model.parent, "m", 4)


def test_a_version_that_replaced_an_optimized_one_is_nobodys_result(model: Path) -> None:
    write_report(model, 3)
    (model / "3" / "model.onnx").write_bytes(b"the author's own")
    assert of_repository(model.parent, "m").version == 3


def test_a_model_of_results_alone_needs_a_version(model: Path) -> None:
    for version in (1, 2, 3):
        write_report(model, version)
    with pytest.raises(ConfigError, match="--version N"):
        of_repository(model.parent, "m")


@pytest.mark.parametrize("key", ["intra_op_thread_count", "INTRA_OP_THREAD_COUNT"])
def test_threads_are_read_and_replaced_in_every_spelling(model: Path, key: str) -> None:
    written = f'backend: "onnxruntime" parameters {{ key: "{key}" value {{ string_value: "4" }} }}'
    (model / "config.pbtxt").write_text(written)
    source = of_repository(model.parent, "m")
    assert source.settings == RunSettings(threads=4)
    for settings, expected in (
        (RunSettings(threads=1), {}),
        (RunSettings(threads=2), {"intra_op_thread_count": "2"}),
        (RunSettings(OPENVINO, 1), {"INFERENCE_NUM_THREADS": "1"}),
    ):
        config = parse_text(config_text(source, "n", settings), "n")[0]
        assert {name: value.string_value for name, value in config.parameters.items()} == expected


def test_a_model_on_a_gpu_keeps_no_group_on_the_cpu(model: Path) -> None:
    (model / "config.pbtxt").write_text('backend: "onnxruntime" instance_group [ { kind: KIND_CPU count: 3 } ]')
    config = parse_text(config_text(of_repository(model.parent, "m"), "n", RunSettings(), on_gpu=True), "n")[0]
    kinds = [(group.kind, group.count) for group in config.instance_group]
    assert kinds == [(model_config_pb2.ModelInstanceGroup.KIND_GPU, 1)]


def test_a_file_beside_the_configured_one_is_not_taken_for_it(model: Path) -> None:
    (model / "config.pbtxt").write_text('backend: "onnxruntime"')
    (model / "1" / "student.onnx").write_bytes(b"another")
    assert of_file(model / "1" / "model.onnx") == of_repository(model.parent, "m", 1)
    with pytest.raises(ConfigError, match=r"student\.onnx.*expected the file .*m/1/model\.onnx"):
        of_file(model / "1" / "student.onnx")
