"""Reasons of failed trials name the files that people gave, in place of the copies that were tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from isochrone.optimize.searching.candidate import Candidate, RunSettings
from isochrone.optimize.transforming.facts import machine_facts
from isochrone.optimize.trials import workbench
from isochrone.optimize.trials.accuracy import Task
from isochrone.optimize.trials.children import Limits, TaskFailed
from isochrone.optimize.trials.shown_paths import with_known_paths
from isochrone.optimize.trials.source import Source
from isochrone.optimize.trials.workbench import Job, Workbench

FOLDER = Path("/tmp/isochrone-optimize-1")
MODEL = f"{FOLDER}/models/slim_onnxruntime_1_thread/fast"
ALONE = Source("enc", Path("/home/enc.onnx"), model_config_pb2.ModelConfig())
VERSION = Source(
    "enc", Path("/repo/enc/3/model.onnx"), model_config_pb2.ModelConfig(), directory=Path("/repo/enc"), version=3
)


@pytest.mark.parametrize(
    ("text", "alone", "version"),
    [
        (f"{FOLDER}/float.onnx: bad", "/home/enc.onnx: bad", "/repo/enc/3/model.onnx: bad"),
        (f"read '{FOLDER}/12.onnx'", "read '/home/enc.onnx'", "read '/repo/enc/3/model.onnx'"),
        (f"{MODEL}/1/model.onnx: bad", "/home/enc.onnx: bad", "/repo/enc/3/model.onnx: bad"),
        (f"{MODEL}/config.pbtxt: backend", "config.pbtxt: backend", "/repo/enc/config.pbtxt: backend"),
        (f"{MODEL}/labels.txt is missing", "/home/labels.txt is missing", "/repo/enc/labels.txt is missing"),
        (f"in {MODEL}/1", "in /home", "in /repo/enc/3"),
        (f"{FOLDER}/calibration.npz is empty", "the data is empty", "the data is empty"),
        ("nothing to change", "nothing to change", "nothing to change"),
    ],
)
def test_copies_are_shown_as_what_they_were_made_from(text: str, alone: str, version: str) -> None:
    assert with_known_paths(text, FOLDER, ALONE, "fast") == alone
    assert with_known_paths(text, FOLDER, VERSION, "fast") == version


def test_a_failed_trial_names_the_given_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "enc.onnx"
    source.touch()
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "float.onnx").touch()

    def fail(task: str, limits: Limits, /, **given: object) -> None:
        raise TaskFailed(f"Load model from {given['model']}/1/model.onnx failed: no such type")

    monkeypatch.setattr(workbench, "run_task", fail)
    job = Job(Source("enc", source, model_config_pb2.ModelConfig()), "enc", Task.REGRESS, machine_facts(), Limits())
    outcome = Workbench(folder, job).trial(Candidate((), RunSettings()))
    assert outcome.reason == f"Load model from {source} failed: no such type"
