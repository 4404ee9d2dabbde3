"""The container files: hadolint has nothing to say, they copy what exists, and they run without root.

Tests do not build them: that needs a container engine.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from isochrone.control.fleet.settings.kubernetes_spec import Kubernetes
from isochrone.engines.kubernetes.render.pods import USER
from scripts.lock import read_lock, requirements_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy").glob("Containerfile*"))
HADOLINT = Path(sys.executable).with_name("hadolint")


def _instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def _last_stage(path: Path) -> list[tuple[str, str]]:
    found = _instructions(path)
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def test_there_is_one_for_cpus_and_one_for_gpus() -> None:
    assert [path.name for path in FILES] == ["Containerfile", "Containerfile.gpu"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    ended = subprocess.run([HADOLINT, path], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_runs_as_the_user_of_the_pods_without_build_tools(path: Path) -> None:
    last = _last_stage(path)
    assert ("USER", f"{USER}:{USER}") in last
    assert ("ENTRYPOINT", '["isochrone"]') in last
    # Only what the first stage made: no compiler, no package lists, no source.
    assert [word for word, _ in last if word == "RUN"] == []
    assert [text for word, text in last if word == "COPY"] == ["--from=build /opt/isochrone /opt/isochrone"]
    assert last.index(("USER", f"{USER}:{USER}")) > max(i for i, (word, _) in enumerate(last) if word == "COPY")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_base_images_have_a_tag(path: Path) -> None:
    bases = [text.split()[0] for word, text in _instructions(path) if word == "FROM"]
    assert bases
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", base) for base in bases)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_it_copies_exists_and_is_sent_to_the_build(path: Path) -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for word, text in _instructions(path):
        if word == "COPY" and not text.startswith("--from"):
            for source in shlex.split(text)[:-1]:
                assert (ROOT / source).exists()
                assert source in sent


def _lock(path: Path) -> str:
    """The lock that is installed unless the build is given another one."""
    given = {key: text.strip('"') for key, text in re.findall(r"^ARG (\w+)=(.*)$", path.read_text(), re.M)}
    (installed,) = re.findall(r'/opt/isochrone/bin/pip install .* -r "?locks/(.*)\.txt"?', path.read_text())
    for key, text in given.items():
        installed = installed.replace(f"${{{key}}}", text)
    return installed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_installed_is_locked(path: Path) -> None:
    installs = re.findall(r"pip install ([^&\n]*)", path.read_text().replace("\\\n", " "))
    assert len(installs) == 3
    for arguments in installs:
        words = set(arguments.split())
        # From a lock, or our own wheel, made of what a lock names.
        assert "--no-deps" in words
        assert words >= {"--require-hashes", "--only-binary", ":all:"} or words >= {"--no-index", "/wheels/*.whl"}
    assert "--no-build-isolation" in path.read_text(), "an isolated build installs what no lock names"
    assert (ROOT / "locks" / f"{_lock(path)}.txt").exists()
    assert (ROOT / "locks" / "build.txt").exists()


@pytest.mark.parametrize(
    ("role", "name", "packages"),
    [
        ("engine", "Containerfile", {"kr8s", "obstore"}),
        ("controller", "Containerfile", {"obstore"}),
        ("worker", "Containerfile", {"obstore"}),
        ("worker with GPUs", "Containerfile.gpu", {"obstore", "torch"}),
        ("whoever verifies signatures", "Containerfile", {"model-signing", "cryptography", "joserfc"}),
        ("a worker with GPUs that verifies signatures", "Containerfile.gpu", {"model-signing", "cryptography"}),
    ],
)
def test_an_image_has_the_packages_that_its_roles_import(role: str, name: str, packages: set[str]) -> None:
    installed = {pin.name for pin in read_lock(ROOT / "locks" / f"{_lock(ROOT / 'deploy' / name)}.txt")}
    assert packages <= installed, role


def test_the_image_for_kuberay_has_rays_http_server() -> None:
    """KubeRay's probes ask it, and ray alone does not have it."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (built,) = re.findall(r"-t isochrone-ray:\S+ --build-arg LOCK=([\w-]+)", FILES[0].read_text())
    assert [each for each in requirements_of(built) if each.startswith("ray[default]>=")]
    assert "ray>=2.56" in known["ray"]
    assert Kubernetes().ray_version == "2.56.0", "what the package requires"
