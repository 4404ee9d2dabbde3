"""Symbolic links of models: those that leave the repository are errors where the server confines models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isochrone.errors import ConfigError, IsochroneError
from isochrone.models.repository.links import check_links
from isochrone.models.repository.repository import Repository

_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "models" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(_CONFIG)
    (directory / "1" / "model.py").write_text("class Model: pass\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    return directory


def _outside(model: Path) -> Path:
    return model.parents[1] / "secret"


@pytest.mark.parametrize("place", ["1/weights", "labels.txt", "1/a/b/c"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_link_out_of_the_repository_is_refused(model: Path, place: str, relative: bool) -> None:
    link, target = model / place, _outside(model) / "file"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent) if relative else target)
    with pytest.raises(ConfigError, match=f"{link}: link: expected one that stays inside of the repository"):
        Repository([model.parent], links_stay=True).read("m")
    entry = Repository([model.parent], links_stay=True).scan()["m"]
    assert entry.problem is not None
    assert "link" in str(entry.problem)
    assert not entry.versions, "its files are not read"
    # Without a sandbox, links are the operator's own.
    assert Repository([model.parent]).read("m").name == "m"


def test_neither_its_configuration_nor_the_model_itself_may_be_such_a_link(model: Path) -> None:
    (model / "config.pbtxt").unlink()
    (model / "config.pbtxt").symlink_to(_outside(model) / "file")
    with pytest.raises(ConfigError) as caught:
        Repository([model.parent], links_stay=True).read("m")
    assert "link" in str(caught.value)
    assert "secret\n" not in str(caught.value)
    (model.parent / "other").symlink_to(_outside(model))
    with pytest.raises(ConfigError, match="link"):
        Repository([model.parent], links_stay=True).read("other")


def test_a_link_over_a_link_is_followed_to_its_end(model: Path) -> None:
    (model.parent / "shared").mkdir()
    (model.parent / "shared" / "onward").symlink_to(_outside(model))
    (model / "1" / "data").symlink_to(model.parent / "shared")
    with pytest.raises(ConfigError, match="onward"):
        check_links(model, model.parent)


def test_links_inside_of_the_repository_stay(model: Path, tmp_path: Path) -> None:
    """As Kubernetes and git-sync make them; a circle of links ends."""
    (model.parent / "..data").mkdir()
    (model.parent / "..data" / "weights").write_text("w")
    (model / "1" / "weights").symlink_to(model.parent / "..data" / "weights")
    (model / "1" / "loop").symlink_to(model)
    (model / "1" / "broken").symlink_to("nothing")
    (tmp_path / "link").symlink_to(model.parent)
    assert Repository([tmp_path / "link"], links_stay=True).read("m").name == "m"


def test_a_neighbour_with_a_longer_name_is_outside(model: Path) -> None:
    other = model.parent.with_name("models-of-others")
    other.mkdir()
    (model / "1" / "link").symlink_to(other)
    with pytest.raises(ConfigError, match="link"):
        check_links(model, model.parent)


@pytest.mark.parametrize("name", ["../secret", "..", ".", "/etc", "m/../../secret", "m\0", "", "a/b", "..\\secret"])
def test_names_cannot_leave_the_repository(model: Path, name: str) -> None:
    with pytest.raises(IsochroneError):
        Repository([model.parent]).read(name)


@pytest.mark.parametrize(
    "file", ["file:../../escaped", "file:/escaped", "file:1/../../../escaped", "file:1/a\0", "file:", "file:1/", "x/y"]
)
def test_files_of_load_requests_cannot_leave_their_directory(model: Path, file: str, tmp_path: Path) -> None:
    with pytest.raises(IsochroneError):
        Repository([model.parent]).read("m", '{"backend": "python"}', {file: b"x", "file:1/model.py": b""})
    assert not list(tmp_path.rglob("*escaped*"))
