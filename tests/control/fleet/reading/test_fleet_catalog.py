"""The catalog of repositories: versions, stages, and clear errors for what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.control.fleet.reading.catalog import available_versions, catalog, stages_of
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.settings.problems import SettingsError

ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling { step [ { model_name: "first" }, { model_name: "second" }, { model_name: "first" } ] }
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, versions in (("first", (1, 2, 10)), ("second", (1,)), ("both", (1, 2)), ("empty", ())):
        (tmp_path / "models" / name).mkdir(parents=True)
        for version in versions:
            (tmp_path / "models" / name / str(version)).mkdir()
    (tmp_path / "models" / "both" / "config.pbtxt").write_text(ENSEMBLE)
    (tmp_path / "elsewhere" / "third" / "7").mkdir(parents=True)
    (tmp_path / "others" / "first" / "2").mkdir(parents=True)
    return tmp_path


def read(text: str, directory: Path) -> Fleet:
    return parse_fleet(f"name: a\n{text}", "fleet.yaml", directory)


def problems(text: str, directory: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        catalog(read(text, directory), directory, "fleet.yaml", f"name: a\n{text}")
    return str(caught.value).replace(str(directory), "DIR").splitlines()


def test_versions_are_numbers_in_order(directory: Path) -> None:
    assert available_versions(read("", directory), "first", directory) == [1, 2, 10]


def test_latest_is_the_highest_number(directory: Path) -> None:
    found = catalog(read("models: {first: }", directory), directory)
    assert (found["first"].version, found["first"].pools, found["first"].stages) == ("10", ("cpu",), ())


def test_stages_come_from_the_configuration_unless_the_file_names_them(directory: Path) -> None:
    assert stages_of(read("", directory), "both", directory) == ("first", "second")
    assert stages_of(read("models: {both: {stages: [second]}}", directory), "both", directory) == ("second",)


def test_stages_are_served_with_the_defaults(directory: Path) -> None:
    found = catalog(
        read("defaults: {slo: {deadline_ms: 5}, version: 1}\nmodels: {both: {version: 2}}", directory), directory
    )
    assert {name: model.version for name, model in found.items()} == {"both": "2", "first": "1", "second": "1"}
    assert found["second"].spec.slo.deadline_ms == 5


def test_without_names_every_model_is_served(directory: Path) -> None:
    (directory / "models" / "empty").rmdir()
    assert set(catalog(read("", directory), directory)) == {"first", "second", "both"}


def test_a_source_lies_elsewhere(directory: Path) -> None:
    fleet = read("models: {third: {source: ./elsewhere/third}}", directory)
    assert available_versions(fleet, "third", directory) == [7]
    assert catalog(fleet, directory)["third"].version == "7"


def test_only_versions_that_all_pools_have_count(directory: Path) -> None:
    fleet = read("pools: {cpu: {}, gpu: {repository: others}}\nmodels: {first: }", directory)
    assert available_versions(fleet, "first", directory) == [2]


def test_outside_servers_are_taken_at_their_word(directory: Path) -> None:
    text = "pools: {t: {addresses: ['h:1']}}\nmodels: {far: {version: 3}}"
    assert catalog(read(text, directory), directory)["far"].version == "3"
    assert available_versions(read(text, directory), "far", directory) == []
    assert problems(text.replace("3", "latest"), directory) == [
        "fleet.yaml:3: models.far.version: expected a number, since its servers' own repositories cannot be read"
        ", given latest"
    ]


def test_what_is_not_there_is_told_all_at_once(directory: Path) -> None:
    text = "models:\n  frist: {}\n  first: {version: 3}\n  third: {source: ./nowhere/third}\n  empty: {}"
    assert problems(text, directory) == [
        "fleet.yaml:3: models.frist: expected a known model (did you mean 'first'?) in DIR/models, DIR/nowhere,"
        " given 'frist'",
        "fleet.yaml:4: models.first.version: expected a version of first that is there (1, 2, 10), given 3",
        "fleet.yaml:5: models.third.source: expected a directory at DIR/nowhere/third, given nothing there",
        "fleet.yaml:6: models.empty: expected at least one version directory such as '1' in DIR/models/empty,"
        " given none",
    ]


def test_a_missing_repository_is_told_once(directory: Path) -> None:
    assert problems("repository: gone\nmodels: {first: , second: }", directory) == [
        "fleet.yaml:2: repository: expected a directory at DIR/gone, given nothing there"
    ]


def test_a_stage_that_is_not_there_is_told(directory: Path) -> None:
    (directory / "models" / "both" / "config.pbtxt").write_text(ENSEMBLE.replace("second", "secund"))
    assert problems("models: {both: }", directory) == [
        "fleet.yaml:2: models.secund: expected a known model (did you mean 'second'?) in DIR/models, given 'secund'"
    ]


def test_a_wrong_configuration_is_told(directory: Path) -> None:
    (directory / "models" / "both" / "config.pbtxt").write_text("platfrom: 1")
    (line,) = problems("models: {both: }", directory)
    assert line.startswith(
        "fleet.yaml:2: models.both: expected a right configuration: a known key (did you mean 'platform'?)"
    )
    assert "DIR/models/both/config.pbtxt:1:" in line


def test_versions_of_an_unknown_model(directory: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"fleet a: models.zebra: expected one of the known models both, empty, first, second"
    ):
        available_versions(read("", directory), "zebra", directory)


def test_a_repository_without_a_model_is_told(directory: Path) -> None:
    (directory / "hollow").mkdir()
    (directory / "file").write_text("")
    assert problems("repository: hollow", directory) == [
        "fleet.yaml:2: repository: expected at least one model in DIR/hollow, given none"
    ]
    assert problems("repository: modles", directory) == [
        "fleet.yaml:2: repository: expected a directory at DIR/modles, given nothing there"
    ]
    assert problems("repository: [models, file]\nmodels: {first: }", directory) == [
        "fleet.yaml:2: repository: expected a directory at DIR/file, given a file"
    ]
    assert problems("pools: {t: {addresses: ['h:1']}}", directory) == [
        "fleet.yaml:1: models: expected at least one model, since its servers' own repositories cannot be read,"
        " given none"
    ]


def test_an_ensemble_is_where_its_stages_are(directory: Path) -> None:
    text = "pools: {cpu: , gpu: }\nmodels:\n  both: {version: 1, pools: [%s]}\n  second: {version: 1, pools: [gpu]}"
    assert problems(text % "cpu", directory) == [
        "fleet.yaml:4: models.both.pools: expected pools that serve its stage second, too (gpu), given cpu"
    ]
    assert set(catalog(read(text % "gpu", directory), directory)) == {"both", "first", "second"}
