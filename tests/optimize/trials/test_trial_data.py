"""The division of the data, its errors, and the measures of accuracy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isochrone.errors import ConfigError
from isochrone.models.file_tensors import FileTensor
from isochrone.optimize.trials.accuracy import Task, check_reference, compare
from isochrone.optimize.trials.data import read_data

X = FileTensor("x", "FP32", (-1, 3))


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def test_the_halves_share_no_row_and_keep_their_labels(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    data = read_data(saved(tmp_path, x=rows, y=np.arange(20)), [X], labels="y", batch=2)
    first, second = (set(part["x"].reshape(-1).tolist()) for part in (data.calibration, data.held_out))
    assert not first & second
    assert len(first | second) == 60
    assert data.labels is not None
    assert (data.labels == data.held_out["x"][:, :, 0] / 3).all()


def test_an_entry_may_be_a_whole_run(tmp_path: Path) -> None:
    fixed = FileTensor("x", "FP32", (2, 3))
    data = read_data(saved(tmp_path, x=np.zeros((8, 2, 3))), [fixed])
    assert data.held_out["x"].shape == (4, 2, 3)
    assert data.held_out["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((8, 3), np.float32)}, "an array for each input: 'x', given 'z'"),
        ({"x": np.zeros((8, 4), np.float32)}, r"rows of the input's shape \[any, 3\]"),
        ({"x": np.zeros((8, 3), np.float32), "y": np.zeros(8)}, "--labels names an array"),
        ({"x": np.zeros((2, 3), np.float32)}, "at least 4 runs"),
        ({"x": np.full((8, 3), np.nan, np.float32)}, "finite numbers"),
        ({"x": np.full((8, 3), "a")}, "float32, as the model declares"),
        ({"x": np.array([[None] * 3] * 8)}, "an .npz file with one array"),
    ],
)
def test_wrong_data_is_named(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_data(saved(tmp_path, **arrays), [X])


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"an \.npz file"):
        read_data(tmp_path / "data.npz", [X])


def run(*rows: list[float]) -> list[dict[str, Any]]:
    return [{"y": np.array(rows, np.float32)}]


def test_the_drop_is_of_accuracy_of_agreement_or_the_error() -> None:
    reference, found = run([1, 0], [0, 1]), run([1, 0], [1, 0])
    assert compare(reference, found, Task.REGRESS).drop == pytest.approx(1.0)
    assert compare(reference, found, Task.CLASSIFY).drop == 0.5
    assert compare(reference, found, Task.CLASSIFY, [np.array([0, 0])]).drop == -0.5


def test_outputs_that_are_not_finite_differ_without_bound() -> None:
    for task in Task:
        assert compare(run([1, 0]), run([math.nan, 0]), task).drop == math.inf


@pytest.mark.parametrize("label", [-1, 2, 10])
def test_labels_that_no_class_has_are_refused(label: int) -> None:
    reference = run([1, 0], [0, 1])
    with pytest.raises(ValueError, match=f"labels: expected 0 to 1, the classes of the model's scores, given {label}"):
        compare(reference, reference, Task.CLASSIFY, [np.array([0, label])])
    with pytest.raises(ValueError, match="one for each of 2 rows of scores, given 1"):
        compare(reference, reference, Task.CLASSIFY, [np.array([0])])


def test_the_accuracy_of_the_reference_is_given_too() -> None:
    reference = run([1, 0], [0, 1])
    assert compare(reference, reference, Task.CLASSIFY, [np.array([0, 0])]).accuracy == 0.5


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_reference_that_is_not_finite_is_refused(value: float) -> None:
    check_reference(run([1, 0]))
    with pytest.raises(ValueError, match="output 'y' has NaN or infinity"):
        check_reference(run([1, value]))


def test_labels_are_an_array_with_one_for_each_row(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((8, 3), np.float32), y=np.array(3))
    with pytest.raises(ConfigError, match="one for each of 8 rows, given a single number"):
        read_data(path, [X], labels="y")


def test_damaged_compressed_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32))
    damaged = bytearray(path.read_bytes())
    for place in range(200, len(damaged) - 200):
        damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"an \.npz file"):
        read_data(path, [X])
