"""Which files a signature covers, and that no change of one of them passes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import ConfigError
from isochrone.models.repository.signed.checking import verify_in_place
from isochrone.models.repository.signed.covered import configurations, covered_files, is_inside
from isochrone.secure.signing.signed_version import SignatureRefused
from isochrone.secure.signing.signer import Signer
from isochrone.secure.signing.trust import Trust
from signed_models import sign_version
from signing_keys import Key, make_key

_CONFIG = """
backend: "python"
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" }
sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 1 ]
  initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] data_file: "state.bin" } } }
model_warmup { name: "w" inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "x.bin" } } }
"""


def test_what_a_load_reads_is_covered_and_nothing_else(tmp_path: Path) -> None:
    for name in ("3/model.py", "3/lib/util.py", "labels.txt", "initial_state/state.bin", "warmup/x.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    read = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("README.md", "2/model.py", "3.sig", "warmup/other.bin", "3/__pycache__/model.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "config.pbtxt").write_text(_CONFIG)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "edge.pbtxt").write_text('backend: "python"')
    assert set(covered_files(tmp_path, 3)) == read | {"config.pbtxt", "configs/edge.pbtxt"}
    assert configurations(tmp_path) == ["config.pbtxt", "configs/edge.pbtxt"]


def test_names_that_lead_out_of_the_model_cannot_be_signed(tmp_path: Path) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(_CONFIG.replace("labels.txt", "../secrets.txt"))
    with pytest.raises(ConfigError, match="do not lead out of the model"):
        covered_files(model, 1)


def test_names_that_are_no_text_cannot_be_signed(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "1") + b"/\xff")).touch()
    with pytest.raises(ConfigError, match="names in UTF-8"):
        covered_files(tmp_path, 1)


def test_an_empty_version_without_a_configuration_cannot_be_signed(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(ConfigError, match="at least one file"):
        covered_files(tmp_path, 1)


@given(st.text(alphabet="ab./\0\udcff", max_size=8))
def test_only_paths_below_a_directory_are_inside_it(name: str) -> None:
    if is_inside(name):
        assert "\0" not in name
        name.encode()
        assert os.path.normpath(os.path.join("/model", name)) == f"/model/{name}"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return make_key(tmp_path_factory.mktemp("keys"))


_NAMES = st.sampled_from(["1/model.py", "1/a", "1/b/c", "1/b/d", "1/ü.bin", "config.pbtxt"])


@given(files=st.dictionaries(_NAMES, st.binary(max_size=4), min_size=1), data=st.data())
def test_any_other_set_of_files_and_bytes_is_refused(key: Key, files: dict[str, bytes], data: st.DataObject) -> None:
    files = {name: b"" if name == "config.pbtxt" else content for name, content in files.items()}
    others = data.draw(st.dictionaries(_NAMES, st.binary(max_size=4)))
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "m"
        _put(model, files)
        sign_version(Signer(key.private), model)
        trust = Trust([key.public])
        assert verify_in_place(trust, "m", model, 1, configurations(model)).key
        for name in files:
            (model / name).unlink()
        _put(model, others)
        if others == files:
            verify_in_place(trust, "m", model, 1, configurations(model))
        else:
            with pytest.raises(SignatureRefused, match="model 'm' version 1 is refused"):
                verify_in_place(trust, "m", model, 1, configurations(model))


def _put(model: Path, files: dict[str, bytes]) -> None:
    (model / "1").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(content)
