"""``isochrone init`` and ``isochrone validate``: a first fleet.yaml; every error of a file or repository at once."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from divided_repository import write_divided
from isochrone.cli.files.first_fleet import FoundModel, fleet_name, fleet_text, without_missing_steps
from isochrone.cli.main import app
from isochrone.control.fleet.reading.parsing import parse_fleet

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "models"
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](path)
    return path


@pytest.fixture
def models(samples: Path, tmp_path: Path) -> Path:
    """A repository of one's own, in ``tmp_path``."""
    path = tmp_path / "models"
    shutil.copytree(samples, path)
    return path


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# init


def test_init_writes_a_fleet_of_all_models_that_is_valid(models: Path, tmp_path: Path) -> None:
    result = run("init", tmp_path)
    assert result.exit_code == 0, result.output
    assert "models: detector 1, pipeline 1, preprocess 1, tracker 1" in result.output
    text = (tmp_path / "fleet.yaml").read_text()
    document = yaml.safe_load(text)
    assert document["repository"] == "./models"
    assert document["models"]["pipeline"] == {"version": 1, "with": ["preprocess", "detector"]}
    assert text.count("#") > 10
    checked = run("validate", tmp_path / "fleet.yaml")
    assert checked.exit_code == 0, checked.output
    assert "is valid; models: detector 1, pipeline 1, preprocess 1, tracker 1" in checked.output


def test_init_overwrites_only_by_force(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("name: mine\n")
    result = run("init", tmp_path)
    assert result.exit_code == 1
    assert "is there already; overwrite it with --force" in result.output
    assert file.read_text() == "name: mine\n"
    assert run("init", tmp_path, "--force").exit_code == 0
    assert "detector" in file.read_text()


def test_init_inside_a_repository_keeps_the_state_out_of_workers_sight(models: Path) -> None:
    before = contents(models)
    printed = json.loads(run("init", models, "--json").output)
    assert printed["models"] == {"detector": 1, "pipeline": 1, "preprocess": 1, "tracker": 1}
    document = yaml.safe_load((models / "fleet.yaml").read_text())
    assert (document["repository"], document["store"]["url"]) == (".", "sqlite:.isochrone/fleet.db")
    assert run("validate", models / "fleet.yaml").exit_code == 0
    after = contents(models)
    del after["fleet.yaml"]
    assert after == before


def test_init_takes_another_repository_relative_and_absolute(models: Path, tmp_path: Path) -> None:
    for number, given_path in enumerate((models, Path("models"))):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            target = tmp_path / f"fleet-{number}"
            assert run("init", target, "--models", given_path).exit_code == 0
            named = yaml.safe_load((target / "fleet.yaml").read_text())["repository"]
            assert named == (str(models) if given_path.is_absolute() else "../models")
            assert run("validate", target / "fleet.yaml").exit_code == 0


def test_init_leaves_out_what_cannot_be_served_and_says_why(models: Path, tmp_path: Path) -> None:
    (models / "preprocess" / "config.pbtxt").write_text("max_batch_size: many")
    result = run("init", tmp_path, "--json")
    printed = json.loads(result.output)
    assert set(printed["models"]) == {"detector", "tracker"}
    assert "max_batch_size" in printed["left_out"]["preprocess"]
    assert printed["left_out"]["pipeline"] == "its step preprocess cannot be served"
    assert run("validate", tmp_path / "fleet.yaml").exit_code == 0


def test_init_without_models_names_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    result = run("init", tmp_path)
    assert result.exit_code == 1
    assert "name the model repository with --models" in result.output
    assert not (tmp_path / "fleet.yaml").exists()


NAMES = st.text(st.characters(min_codepoint=33, exclude_characters="/\\", exclude_categories=["C", "Z"]), min_size=1)


@given(st.lists(NAMES.filter(lambda name: not name.startswith(".")), min_size=1, max_size=4, unique=True), NAMES)
def test_any_names_of_models_and_directories_are_read_back(names: list[str], directory: str) -> None:
    found = [FoundModel(name, (1, 7)) for name in names]
    text = fleet_text(fleet_name(directory), f"./{directory}", "sqlite:state/fleet.db", found)
    fleet = parse_fleet(text, "fleet.yaml", Path("/"))
    assert fleet.repository == (f"./{directory}",)
    assert {name: model.version for name, model in fleet.models.items()} == dict.fromkeys(names, "7")


def test_ensembles_of_ensembles_fall_with_their_steps() -> None:
    found = without_missing_steps(
        [FoundModel("outer", (1,), ("inner",)), FoundModel("inner", (1,), ("gone",)), FoundModel("other", (1,))]
    )
    assert [model.problem for model in found] == [
        "its step inner cannot be served",
        "its step gone cannot be served",
        "",
    ]


# validate


def test_validate_tells_every_error_of_a_fleet_at_once(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("name: plant\npools:\n  cpu: {workers: many, memroy: 1GiB}\ngateways:\n  gw: {listen: 1}\n")
    result = run("validate", file)
    assert result.exit_code == 1
    # Also what the repositories say: there is none.
    places = ((3, "pools.cpu.workers"), (3, "pools.cpu.memroy"), (5, "gateways.gw.listen"), (1, "repository"))
    for line, key in places:
        assert f"{file}:{line}: {key}: expected" in result.output
    assert f"{file} has 4 errors" in result.output
    printed = json.loads(run("validate", file, "--json").output)
    assert printed["valid"] is False
    assert {problem["key"] for problem in printed["problems"]} == {
        "pools.cpu.workers",
        "pools.cpu.memroy",
        "gateways.gw.listen",
        "repository",
    }


def test_validate_looks_into_the_models_of_a_fleet(models: Path, tmp_path: Path) -> None:
    (models / "tracker" / "config.pbtxt").write_text("max_batch_size: many")
    (models / "detector" / "config.pbtxt").write_text("no_such_key: 1")
    file = tmp_path / "fleet.yaml"
    file.write_text("name: plant\nmodels:\n  tracker: {version: 1}\n  detector: {version: 1}\n")
    result = run("validate", file)
    assert result.exit_code == 1
    assert "tracker/config.pbtxt:1:17: max_batch_size" in result.output
    assert "no_such_key" in result.output


def test_validate_of_a_repository_tells_every_model_that_is_wrong(models: Path) -> None:
    assert "models: detector 1, pipeline 1" in run("validate", models).output
    (models / "tracker" / "config.pbtxt").write_text("max_batch_size: many")
    shutil.rmtree(models / "detector" / "1")
    result = run("validate", models)
    assert result.exit_code == 1
    assert "tracker/config.pbtxt:1:17: max_batch_size" in result.output
    assert "at least one version directory" in result.output


def test_validate_looks_at_ensembles_among_their_steps(models: Path) -> None:
    config = models / "pipeline" / "config.pbtxt"
    right = config.read_text()
    config.write_text(right.replace("TYPE_UINT8", "TYPE_INT32"))
    result = run("validate", models)
    assert result.exit_code == 1
    assert f"{config}: ensemble_scheduling: expected steps that fit together" in result.output
    config.write_text(right)
    shutil.rmtree(models / "preprocess")
    result = run("validate", models)
    assert result.exit_code == 1
    assert "expected steps of models that are there, given preprocess, which is not" in result.output


def test_validate_looks_at_divided_models_among_their_divisions(tmp_path: Path) -> None:
    write_divided(tmp_path / "net", "core:8000", {"edge": (0.002, 0.0), "core": (0.0, 0.001)})
    repository = tmp_path / "net" / "edge"
    assert "net 1" in run("validate", repository).output
    file = repository / "net" / "1" / "divisions.json"
    right = file.read_text()
    file.write_text(right.replace('"edge_ns"', '"edge_ms"', 1))
    result = run("validate", repository)
    assert result.exit_code == 1
    assert "unknown field `edge_ms`" in " ".join(result.output.split())
    file.write_text(right)
    config = repository / "net.core" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: 16", "dims: 17", 1))
    result = run("validate", repository)
    assert result.exit_code == 1
    assert "expected divisions that fit the model" in " ".join(result.output.split())


def test_validate_finds_sequences_among_the_steps_of_a_division(tmp_path: Path) -> None:
    write_divided(tmp_path / "net", "core:8000", {"edge": (0.002, 0.0), "cut-6": (0.001, 0.001)})
    repository = tmp_path / "net" / "edge"
    (first,) = [each for each in repository.iterdir() if list(each.glob("1/*.onnx")) and each.name != "net.edge"]
    config = first / "config.pbtxt"
    config.write_text(config.read_text() + "\nsequence_batching { }\n")
    result = run("validate", repository)
    assert result.exit_code == 1
    assert f"model '{first.name}': sequence_batching: expected none" in " ".join(result.output.split())


def test_validate_of_nothing_says_what_was_expected(tmp_path: Path) -> None:
    result = run("validate", tmp_path / "there")
    assert result.exit_code == 1
    assert "there: no such file; name a fleet.yaml" in result.output
    (tmp_path / "there").mkdir()
    result = run("validate", tmp_path / "there")
    assert result.exit_code == 1
    assert "expected at least one model in Triton's layout" in result.output


@pytest.mark.parametrize(("model", "file"), [("detector", "model.onnx"), ("preprocess", "model.py")])
def test_validate_names_the_file_that_a_version_lacks(model: str, file: str, models: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("name: plant\npools:\n  cpu: {workers: 1}\n")
    assert run("validate", fleet).exit_code == 0
    (models / model / "6").mkdir()
    result = run("validate", fleet)
    assert result.exit_code == 1
    assert f"expected {file} in {models / model / '6'}, given no such file" in result.output
    # A version that is not served may be incomplete: it may be being copied.
    fleet.write_text(f"name: plant\npools:\n  cpu: {{workers: 1}}\nmodels:\n  {model}: {{version: 1}}\n")
    assert run("validate", fleet).exit_code == 0
    result = run("validate", models)
    assert result.exit_code == 1
    assert str(models / model / "6") in result.output
    assert file in result.output


def test_validate_of_a_models_own_directory_names_its_parent(models: Path) -> None:
    result = run("validate", models / "detector")
    assert result.exit_code == 1
    assert f"given a model's own directory; give its parent, {models}" in result.output
