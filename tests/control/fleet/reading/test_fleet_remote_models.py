"""A remote model changes with the model of the fleet that computes it, in one rollout, or the change is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.fleet.reading.remote_models import check_remote_models
from isochrone.errors import InvalidArgument
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.configuration.remote_models import ReachedModel, reached_model

WORKERS = frozenset({"10.0.0.5:8000"})
BEFORE = {"first": "1", "second": "1", "second.core": "1"}
REMOTE = {"endpoints": "10.0.0.5:8000, 10.0.0.6:8000", "remote_model": "second.core"}


def config(**parameters: str) -> str:
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return "\n".join(['backend: "remote"', *lines])


def check(
    directory: Path, after: dict[str, str], rollouts: Sequence[Sequence[str]] | None = None, **parameters: str
) -> None:
    for model in {**BEFORE, **after}:
        for version in ("1", "2"):
            (directory / "models" / model / version).mkdir(parents=True)
    (directory / "models" / "second" / "config.pbtxt").write_text(config(**{**REMOTE, **parameters}))
    fleet = parse_fleet("name: a", "fleet.yaml", directory)
    groups = [tuple(after)] if rollouts is None else rollouts
    check_remote_models(fleet, directory, BEFORE, {**BEFORE, **after}, groups, WORKERS)


def test_a_remote_model_without_the_model_that_computes_it_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"second\.core version 2 .*'second=2 second\.core=2', .* given .* version 1"
    ):
        check(tmp_path, {"first": "2", "second": "2"})


def test_both_in_two_rollouts_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="version 2 in another rollout"):
        check(tmp_path, {"second": "2", "second.core": "2"}, [("second",), ("second.core",)])


def test_both_in_one_rollout_are_accepted(tmp_path: Path) -> None:
    check(tmp_path, {"second": "2", "second.core": "2"})


def test_a_new_remote_model_is_nobodys_yet(tmp_path: Path) -> None:
    check(tmp_path, {"third": "1"}, [("third",)])


def test_what_computes_it_may_be_new(tmp_path: Path) -> None:
    """A model that was computed here becomes a remote one."""
    with pytest.raises(InvalidArgument, match="in another rollout"):
        check(tmp_path / "a", {"second": "2", "new.core": "2"}, [("second",), ("new.core",)], remote_model="new.core")
    check(tmp_path / "b", {"second": "2", "new.core": "2"}, remote_model="new.core")


@pytest.mark.parametrize(
    "parameters",
    [
        {"endpoints": "elsewhere:8000"},
        {"remote_model": "unknown"},
        {"remote_version": "1"},
        {"remote_version": "latest"},
    ],
    ids=lambda given: next(iter(given.values())),
)
def test_what_does_not_need_the_other_change_is_accepted(tmp_path: Path, parameters: dict[str, str]) -> None:
    check(tmp_path, {"second": "2"}, **parameters)


def test_what_a_configuration_states() -> None:
    assert reached_model(parse_text(b'backend: "python"', "here")[0], "2") is None
    stated = parse_text(config(endpoints="a:1").encode(), "here")[0]
    stated.name = "own"
    assert reached_model(stated, "2") == ReachedModel("own", "2", ("a:1",))
