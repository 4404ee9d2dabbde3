"""The parts of ``isochrone infer`` without a server: inputs, parameters, targets, the waterfall."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from isochrone.cli.requests.infer import _parameters, _plain
from isochrone.cli.requests.inputs import arrange, read, split_inputs
from isochrone.cli.requests.opening import open_target
from isochrone.cli.requests.target import Certificates, RequestFailed, TensorDescription
from isochrone.cli.requests.waterfall import percentile, render, stages_of
from isochrone.client.random_tensors import make_random
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME

FEATURES = TensorDescription("features", "FP32", (-1, 3))


def test_inputs_are_split_at_the_first_equals_sign() -> None:
    assert split_inputs(["a=[1]", 'b="x=y"']) == {"a": "[1]", "b": '"x=y"'}


@pytest.mark.parametrize("word", ["a", "=1", "a=", ""])
def test_an_input_without_name_or_value_is_refused(word: str) -> None:
    with pytest.raises(RequestFailed, match="expected NAME=JSON"):
        split_inputs([word])


def test_an_input_given_twice_is_refused() -> None:
    with pytest.raises(RequestFailed, match="a: expected once"):
        split_inputs(["a=1", "a=2"])


def test_json_gets_the_declared_type_and_leading_dimensions() -> None:
    array = read(FEATURES, "[1, 2, 3]")
    assert array.dtype == np.float32
    assert array.tolist() == [[1.0, 2.0, 3.0]]
    assert read(FEATURES, "[[1, 2, 3], [4, 5, 6]]").shape == (2, 3)
    assert read(TensorDescription("n", "INT64", (-1, 1)), "7").tolist() == [[7]]


@pytest.mark.parametrize(
    ("datatype", "text"),
    [
        ("INT32", "[1.5]"),
        ("UINT8", "[300]"),
        ("FP32", '["a"]'),
        ("FP32", "[[1, 2], [3]]"),
        ("BOOL", "[0.5]"),
        ("BYTES", "[1]"),
        ("FP32", "{}"),
        ("FP32", "null"),
        ("FP32", "[1,"),
    ],
)
def test_json_of_another_type_is_refused_by_name(datatype: str, text: str) -> None:
    with pytest.raises(RequestFailed, match="--input x"):
        read(TensorDescription("x", datatype, (-1,)), text)


def test_text_becomes_bytes() -> None:
    array = read(TensorDescription("x", "BYTES", (-1, 2)), '["a", "bc"]')
    assert array.dtype == np.object_
    assert array.tolist() == [["a", "bc"]]


def test_files_of_both_kinds(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float64).reshape(2, 3))
    (tmp_path / "x.json").write_text("[1, 2, 3]")
    from_npy = read(FEATURES, f"@{tmp_path / 'x.npy'}")
    assert from_npy.dtype == np.float32
    assert from_npy.shape == (2, 3)
    assert read(FEATURES, f"@{tmp_path / 'x.json'}").tolist() == [[1.0, 2.0, 3.0]]


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.ones(3))
    np.save(tmp_path / "large.npy", np.array([1 << 40]))
    (tmp_path / "no.npy").write_bytes(b"not numpy")
    (tmp_path / "no.json").write_bytes(b"\xff\xfe")
    whole = TensorDescription("x", "INT32", (-1,))
    for name, said in (
        ("floats.npy", "expected INT32, given float64"),
        ("large.npy", "outside INT32's range"),
        ("no.npy", "is no .npy file"),
        ("no.json", "neither JSON nor .npy"),
        ("absent.npy", "No such file"),
    ):
        with pytest.raises(RequestFailed, match=said):
            read(whole, f"@{tmp_path / name}")


@given(
    st.sampled_from(sorted(NUMPY_BY_NAME)),
    st.lists(st.integers(-1, 3), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_random_inputs_have_the_declared_type_and_a_shape_that_fits(
    datatype: str, dims: list[int], rows: int, seed: int
) -> None:
    declared = TensorDescription("x", datatype, tuple(dims))
    array = make_random(declared, rows, np.random.default_rng(seed))
    assert array.dtype == NUMPY_BY_NAME[datatype]
    assert array.shape[0] == (rows if dims[0] < 0 else dims[0])
    assert all(
        size == max(dimension, 1) for size, dimension in zip(array.shape[1:], dims[1:], strict=True) if dimension
    )
    again = make_random(declared, rows, np.random.default_rng(seed))
    assert array.tolist() == again.tolist()


def test_missing_and_unknown_inputs_are_named() -> None:
    declared = [FEATURES, TensorDescription("mask", "BOOL", (-1, 1))]
    with pytest.raises(RequestFailed, match="has no such input; it has features, mask"):
        arrange("m", declared, {"feature": "1"}, fill=True, rows=1, seed=0)
    with pytest.raises(RequestFailed, match="--input mask="):
        arrange("m", declared, {"features": "[1,2,3]"}, fill=False, rows=1, seed=0)
    filled = arrange("m", declared, {"features": "[1,2,3]"}, fill=True, rows=1, seed=0)
    assert filled["mask"][1].shape == (1, 1)


def test_parameters_are_json_where_they_are_json() -> None:
    given = ["priority=1", "sequence_start=true", "name=left wheel", "rate=0.5"]
    assert _parameters(given) == {"priority": 1, "sequence_start": True, "name": "left wheel", "rate": 0.5}
    for word in ("priority", "=1", "list=[1]"):
        with pytest.raises(RequestFailed, match="--parameter"):
            _parameters([word])


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "grpc://host:1/path", "http://[::1"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(RequestFailed, match=r"--url: expected http://HOST:PORT"):
        open_target(url, None, Certificates())


# infer: what it prints.


def test_outputs_without_a_form_in_json_still_print() -> None:
    assert _plain(np.array([1.5, np.nan, np.inf], np.float32)) == [1.5, "nan", "inf"]
    assert _plain(np.array([2.5], NUMPY_BY_NAME["BF16"])) == [2.5]
    assert _plain(np.array([b"a\xff"], np.object_)) == ["a�"]
    assert json.loads(json.dumps(_plain(np.array([[1, 2]], np.int64)))) == [1, 2]


def test_the_waterfall_adds_up_to_the_total() -> None:
    stages = stages_of(2.0, {"dispatch": 0.1, "queue": 0.2, "compute": 1.0, "cache": 9.0})
    assert list(stages) == ["network", "dispatch", "queue", "compute"]
    assert sum(stages.values()) == pytest.approx(2.0)
    assert stages_of(2.0, {}) == {}
    # Clocks differ: the server's stages may add up to more than the client saw.
    assert stages_of(1.0, {"compute": 1.5})["network"] == 0.0


def test_the_waterfall_fits_a_terminal_and_keeps_its_order() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    stages = stages_of(1.0, {"dispatch": 0.1, "queue": 0.0, "batch": 0.1, "compute": 0.5, "serialise": 0.1})
    console.print(render(1.0, stages, "title"))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines[2:]] == [*stages, "total"]
    starts = [line.index("█") for line in lines if "█" in line]
    assert starts == sorted(starts)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_percentile_is_the_smallest_figure_that_enough_do_not_exceed(figures: list[float], share: float) -> None:
    ordered = sorted(figures)
    value = percentile(ordered, share)
    assert sum(each <= value for each in ordered) >= share * len(ordered) - 1e-9
    smaller = [each for each in ordered if each < value]
    assert len(smaller) < share * len(ordered)
