"""Version directories: which names count, and which the policy picks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.repository.versions import find_versions, require_versions, version_number, versions_to_serve

Policy = model_config_pb2.ModelVersionPolicy


def test_directories_and_what_is_ignored(tmp_path: Path) -> None:
    for name in ("1", "10", "2", "01", "v3", "0", "-1", "warmup", "initial_state", "__pycache__", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").write_text("a file, not a version")
    (tmp_path / "config.pbtxt").write_text("")
    found = find_versions(tmp_path)
    assert found.present == (1, 2, 10)
    assert found.ignored == ("-1", "0", "01", "7", "v3")


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_versions(tmp_path / "gone")
    assert str(caught.value) == (
        f"{tmp_path / 'gone'}: versions: expected a readable directory, given No such file or directory"
    )


@pytest.mark.parametrize("name", ["", "0", "01", "-1", "+1", "1.0", " 1", "1\n", "١", "²", str(2**63), "9" * 5000])
def test_names_that_are_no_versions(name: str) -> None:
    assert version_number(name) is None


@given(st.integers(1, 2**63 - 1))
def test_every_positive_integer_is_a_version(number: int) -> None:
    assert version_number(str(number)) == number
    assert version_number(f"0{number}") is None


@given(st.text(max_size=6))
def test_a_version_name_is_the_only_spelling_of_its_number(name: str) -> None:
    number = version_number(name)
    assert number is None or str(number) == name


present_versions = st.sets(st.integers(1, 50), max_size=8)


@given(present_versions, st.integers(1, 10))
def test_latest_takes_the_newest(present: set[int], count: int) -> None:
    policy = Policy(latest=Policy.Latest(num_versions=count))
    served = versions_to_serve(policy, list(present), "config.pbtxt")
    assert list(served) == sorted(served)
    assert len(served) == min(count, len(present))
    assert all(left < kept for left in present - set(served) for kept in served)


@given(present_versions)
def test_the_default_is_the_newest_one_and_all_is_all(present: set[int]) -> None:
    assert versions_to_serve(Policy(), list(present), "c") == ((max(present),) if present else ())
    assert versions_to_serve(Policy(all=Policy.All()), list(present), "c") == tuple(sorted(present))


@given(present_versions, st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_specific_serves_those_that_are_there(present: set[int], wanted: list[int]) -> None:
    policy = Policy(specific=Policy.Specific(versions=wanted))
    assert versions_to_serve(policy, list(present), "c") == tuple(sorted(set(wanted) & present))


@given(present_versions, st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_a_request_for_versions_names_the_one_that_is_missing(present: set[int], wanted: list[int]) -> None:
    if set(wanted) <= present:
        require_versions(wanted, list(present), "c")
        return
    with pytest.raises(ConfigError) as caught:
        require_versions(wanted, list(present), "c")
    index = next(at for at, version in enumerate(wanted) if version not in present)
    assert caught.value.key == f"version_policy.specific.versions[{index}]"
    assert caught.value.given == str(wanted[index])


@pytest.mark.parametrize(
    ("policy", "key", "given"),
    [
        (Policy(latest=Policy.Latest()), "version_policy.latest.num_versions", "0"),
        (Policy(specific=Policy.Specific()), "version_policy.specific.versions", "none"),
    ],
)
def test_policies_that_serve_nothing(policy: model_config_pb2.ModelVersionPolicy, key: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        versions_to_serve(policy, [1, 2], "m/config.pbtxt")
    assert (caught.value.where, caught.value.key, caught.value.given) == ("m/config.pbtxt", key, given)
    assert "at least" in caught.value.expected
