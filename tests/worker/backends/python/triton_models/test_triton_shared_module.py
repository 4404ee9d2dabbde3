"""``triton_python_backend_utils`` for libraries that several models share, and for ``importlib.import_module``."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from called_server import RecordedServer

from isochrone.worker.backends.python.triton.model import TritonModel, TritonModelContext
from isochrone.worker.backends.python.triton.utilities import MODULE_NAMES

LIBRARY = """
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import Tensor, get_input_tensor_by_name


def log(text):
    pb_utils.Logger.log_info(text)


def directory():
    return pb_utils.get_model_dir()
"""
MODEL = """
import importlib

import {library}

pb_utils = importlib.import_module("triton_python_backend_utils")


class TritonPythonModel:
    def initialize(self, args):
        {library}.log(args["model_instance_name"])

    def log(self, text):
        {library}.log(text)
        pb_utils.Logger.log_warn(text)
"""
LIBRARY_NAME = "library_of_triton_models"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / f"{LIBRARY_NAME}.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop(LIBRARY_NAME, None)
    assert not any(name in sys.modules for name in MODULE_NAMES)


def load(directory: Path, name: str, server: Any, source: str = MODEL) -> TritonModel:
    (directory / name).mkdir()
    (directory / name / "model.py").write_text(source.format(library=LIBRARY_NAME))
    args = {"model_instance_name": name}
    return TritonModel(TritonModelContext(name, "1", directory / name, "model.py", args, ("y",), False), server)


def test_a_library_that_models_share(library: Path, tmp_path: Path) -> None:
    """What it takes from the module belongs to the model that calls it, whichever imported it first."""
    servers = {name: RecordedServer() for name in ("first", "second")}
    models = {name: load(tmp_path, name, server) for name, server in servers.items()}
    for name, model in models.items():
        instance: Any = model._model
        instance.log(f"in {name}")
    for name, server in servers.items():
        assert server.logged == [("info", name), ("info", f"in {name}"), ("warning", f"in {name}")]
    shared: Any = sys.modules[LIBRARY_NAME]
    assert shared.Tensor is vars(models["first"]._modules._given[MODULE_NAMES[0]])["Tensor"]
    with pytest.raises(
        AttributeError, match=r"get_model_dir belongs to one model.*pass get_model_dir on from model.py"
    ):
        shared.directory()
    models["first"].close()
    # One is left: it alone can be meant, as in a process of its own.
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(shared.directory()))
    thread.start()
    thread.join()
    assert found == [str(tmp_path / "second")]
    models["second"].close()


def test_a_model_that_does_not_load_leaves_nothing(library: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such name"):
        load(tmp_path, "wrong", RecordedServer(), "import {library}\n")


def test_names_that_are_not_there(library: Path, tmp_path: Path) -> None:
    model = load(tmp_path, "first", RecordedServer())
    module = importlib.import_module(MODULE_NAMES[1])
    assert not hasattr(module, "nothing_like_this")
    assert not hasattr(module, "__path__")
    model.close()


def test_a_module_of_that_name_that_was_imported_before_stays(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub: Any = type(sys)(MODULE_NAMES[0])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, MODULE_NAMES[0], stub)
        source = (
            "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    own = pb_utils.Logger\n"
        )
        load(tmp_path, "first", RecordedServer(), source).close()
        assert sys.modules[MODULE_NAMES[0]] is stub
