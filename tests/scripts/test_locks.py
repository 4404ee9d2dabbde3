"""locks/: they satisfy pyproject.toml as it is now, have hashes for every file, and name no index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from documented import ROOT
from scripts.lock import ENVIRONMENTS, LOCKS, Pin, pin_of, project, read_lock, requirements_of, write_lock

NAMES = sorted(project()["tool"]["isochrone"]["locks"])


def unsatisfied(requirements: list[str], pins: list[Pin]) -> list[str]:
    """What of the requirements a lock does not satisfy, for one of the environments."""
    problems = []
    for environment in ENVIRONMENTS:
        versions = {pin.name: pin.version for pin in pins if pin.applies_to(environment)}
        for text in requirements:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate(environment):
                continue
            version = versions.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                problems.append(f"{text}: {version or 'nothing'} for Python {environment['python_version']}")
    return problems


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_satisfies_what_it_is_made_of(name: str) -> None:
    problems = unsatisfied(requirements_of(name), read_lock(LOCKS / f"{name}.txt"))
    assert not problems, f"locks/{name}.txt: run make lock ARGS=--keep"


def test_a_new_dependency_and_a_higher_version_are_noticed() -> None:
    pins = read_lock(LOCKS / "image.txt")
    requirements = requirements_of("image")
    assert unsatisfied([*requirements, "leftpad>=1"], pins)
    assert unsatisfied([*requirements, "numpy>=99"], pins)
    assert unsatisfied(requirements, [pin for pin in pins if pin.name != "uvloop"])
    # One version for older Pythons, another for newer ones: each is needed.
    (older,) = [pin for pin in pins if pin.name == "numpy" and "3.11" in pin.marker]
    assert unsatisfied(requirements, [pin for pin in pins if pin != older])


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_a_hash_and_no_index_is_named(name: str) -> None:
    path = LOCKS / f"{name}.txt"
    for pin in read_lock(path):
        assert pin.hashes, pin
        assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in pin.hashes)
        assert re.fullmatch(r"[a-z0-9-]+", pin.name)
        assert re.fullmatch(r"[0-9!][\w.!+]*", pin.version)
        if pin.marker:
            Marker(pin.marker)
    assert not re.search(r"://|--(extra-)?index|--find-links|@ ", path.read_text())


def test_every_lock_is_listed_and_in_images_and_tools() -> None:
    assert sorted(path.stem for path in LOCKS.iterdir()) == NAMES
    assert "!locks" in (ROOT / ".dockerignore").read_text().splitlines()
    makefile = (ROOT / "Makefile").read_text()
    assert "-r locks/dev.txt" in makefile
    assert "-r locks/tools.txt" in makefile


def test_the_build_has_what_compiling_requires() -> None:
    (backend,) = project()["build-system"]["requires"]
    # As hatch_build.py has it of a module that only a build can import.
    source = (ROOT / "scripts" / "compile_hot_modules.py").read_text()
    (mypyc,) = re.findall(r'^MYPYC = "(.+)"$', source, re.M)
    (others,) = re.findall(r"^REQUIREMENTS = \(MYPYC, (.+)\)$", source, re.M)
    required = [backend, mypyc, *re.findall(r'"([^"]+)"', others)]
    assert not unsatisfied(required, read_lock(LOCKS / "build.txt"))


def test_versions_of_one_package_exclude_each_other() -> None:
    for name in NAMES:
        pins = read_lock(LOCKS / f"{name}.txt")
        for environment in ENVIRONMENTS:
            names = [pin.name for pin in pins if pin.applies_to(environment)]
            assert len(names) == len(set(names)), name


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    pins = [Pin("a", "1", "", ("0" * 64,)), Pin("b", "2!1", "python_version < '3.12'", ("1" * 64, "2" * 64))]
    write_lock(tmp_path / "x.txt", pins)
    assert read_lock(tmp_path / "x.txt") == pins


def _package(*names: str, marker: str = "") -> dict[str, object]:
    wheels = [{"url": f"https://x/{name}", "hashes": {"sha256": f"{index:064x}"}} for index, name in enumerate(names)]
    return {"name": "A_b", "version": "1", "marker": marker, "wheels": wheels}


def test_wheels_for_other_systems_and_pythons_are_left_out() -> None:
    pin = pin_of(
        _package(
            "a_b-1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "a_b-1-cp311-abi3-manylinux_2_28_aarch64.whl",
            "a_b-1-cp311-abi3-macosx_11_0_arm64.whl",
            "a_b-1-cp39-cp39-manylinux_2_28_x86_64.whl",
            "a_b-1-cp311-abi3-musllinux_1_2_x86_64.whl",
            "a_b-1-cp312-cp312-manylinux_2_39_x86_64.whl",
        )
    )
    assert pin == Pin("a-b", "1", "", (f"{0:064x}", f"{1:064x}"))


def test_a_package_without_a_wheel_for_a_machine_is_no_lock() -> None:
    with pytest.raises(SystemExit, match=r"a-b==1 has no wheel for Python 3\.11 on aarch64"):
        pin_of(_package("a_b-1-cp311-abi3-manylinux_2_28_x86_64.whl"))
    assert pin_of(_package("a_b-1-py3-none-any.whl", marker="sys_platform == 'win32'")) is None
    pin = pin_of(_package("a_b-1-py3-none-any.whl", marker="python_full_version >= '3.11' and python_version > '3.11'"))
    assert pin is not None
    assert pin.marker == "python_version > '3.11'"
