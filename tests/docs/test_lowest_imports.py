"""``make test-lowest`` has no runtimes that are extras: it must leave out the tests whose import needs one."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from documented import ROOT
from scripts.test_lowest import IGNORED, TESTS, TOOLS

FOLDER = ROOT / "tests"
#: Names that are imported → files, of the modules beside tests. Basenames are unique.
BESIDE_TESTS = {path.stem: path for path in FOLDER.rglob("*.py") if path.name != "conftest.py"}


def distribution(requirement: str) -> str:
    """Its name, as installers compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=! ]", requirement)[0]).lower()


def missing_libraries() -> frozenset[str]:
    """What extras bring and the environment of the lowest versions does not have, by the names that are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    installed = {distribution(each) for each in (*project["dependencies"], *extras["onnx"], *TOOLS, "isochrone")}
    absent = {distribution(each) for extra in extras.values() for each in extra} - installed
    return frozenset(
        module
        for module, distributions in packages_distributions().items()
        if {distribution(each) for each in distributions} <= absent
    )


MISSING = missing_libraries()


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run when a module is imported."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, []))


@cache
def imported(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for statement in statements(ast.parse(path.read_text()).body):
        if isinstance(statement, ast.Import):
            found.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.update(f"{statement.module}.{alias.name}" for alias in statement.names)
    return frozenset(found)


@cache
def files_of(name: str) -> frozenset[Path]:
    """The repository's files that an import of ``name`` runs; the last part of a name may be no module."""
    parts = name.split(".")
    places = [ROOT.joinpath(top, *parts[:count]) for top in ("src", "") for count in range(1, len(parts) + 1)]
    files = {file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}
    return frozenset(files | ({BESIDE_TESTS[parts[0]]} if parts[0] in BESIDE_TESTS else set()))


@cache
def beside(path: Path) -> frozenset[Path]:
    """The repository's files that a file itself imports."""
    return frozenset().union(*map(files_of, imported(path)))


def needed(test: Path) -> set[str]:
    """The missing libraries that are imported with a test, as pytest imports it: with the conftests above it."""
    above = [folder / "conftest.py" for folder in test.parents if folder.is_relative_to(FOLDER)]
    waiting = [test, *(each for each in above if each.is_file())]
    files = set(waiting)
    while waiting:
        new = beside(waiting.pop()) - files
        files |= new
        waiting += new
    return {top for path in files for name in imported(path) if (top := name.split(".")[0]) in MISSING}


def files_in(name: str) -> list[Path]:
    place = FOLDER / name
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def test_the_runtimes_that_are_extras_are_missing() -> None:
    assert {"torch", "safetensors", "tokenizers", "openvino", "treelite", "obstore", "ray", "kr8s", "pynvml"} <= MISSING
    assert not MISSING & {"onnx", "onnxruntime", "numpy", "tritonclient", "hypothesis", "psutil"}


def test_imports_are_followed_through_modules_beside_tests_and_the_source() -> None:
    assert "torch" in needed(BESIDE_TESTS["test_sm_partitions"])
    assert "torch" in needed(BESIDE_TESTS["test_steps_in_flight"])
    assert not needed(BESIDE_TESTS["test_identity"])


@pytest.mark.long
def test_tests_that_need_a_missing_library_are_left_out() -> None:
    ignored = {test for name in IGNORED for test in files_in(name)}
    left = {test: needed(test) for name in TESTS for test in files_in(name) if test not in ignored}
    assert len(left) > 300
    assert {test.relative_to(FOLDER).as_posix(): names for test, names in left.items() if names} == {}


def test_nothing_else_is_left_out() -> None:
    for name in IGNORED:
        assert any(needed(test) for test in files_in(name)), name
