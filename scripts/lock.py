"""Writes the files in locks/: exact versions with hashes of what images, builds, tools and development install.

    make lock                    the newest versions that pyproject.toml allows
    make lock ARGS=--keep        only what a change of pyproject.toml requires
    make lock ARGS='image dev'   some of them

``[tool.isochrone.locks]`` in pyproject.toml lists the locks. uv resolves for every Python and machine at once; of what
it finds, this keeps the wheels for Linux on x86_64 and aarch64. A lock names no index: pip takes files from the index
that it is configured with, and refuses those with other hashes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = ("x86_64", "aarch64")
#: The newest glibc that a wheel may need: that of Debian 12, which the images are made of.
_GLIBC = 36

#: Where a lock is installed: what markers are evaluated with.
ENVIRONMENTS: tuple[dict[str, str], ...] = tuple(
    {
        "python_version": f"{major}.{minor}",
        "python_full_version": f"{major}.{minor}.9",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    for major, minor in PYTHONS
    for machine in MACHINES
)


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of a lock."""

    name: str
    version: str
    #: "" where it is installed everywhere.
    marker: str
    hashes: tuple[str, ...]

    def applies_to(self, environment: dict[str, str]) -> bool:
        return not self.marker or Marker(self.marker).evaluate(environment)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements_of(lock: str) -> list[str]:
    """What a lock is to satisfy, with the extras of this project written out."""
    document = project()
    return sorted(set(_expanded(document["tool"]["isochrone"]["locks"][lock], document["project"])))


def _expanded(requirements: Sequence[str], known: dict[str, Any]) -> Iterator[str]:
    for text in requirements:
        requirement = Requirement(text)
        if requirement.name != known["name"]:
            yield text
            continue
        yield from known["dependencies"]
        for extra in requirement.extras:
            yield from _expanded(known["optional-dependencies"][extra], known)


def read_lock(path: Path) -> list[Pin]:
    pins = []
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement, *hashes = line.split("--hash=sha256:")
            named, _, marker = requirement.partition(";")
            name, _, version = named.strip().partition("==")
            pins.append(Pin(name, version, marker.strip(), tuple(each.strip() for each in hashes)))
    return pins


def write_lock(path: Path, pins: Sequence[Pin]) -> None:
    lines = [f"# Made by make lock from pyproject.toml, [tool.isochrone.locks] {path.stem}. Do not edit.\n"]
    for pin in pins:
        marker = f" ; {pin.marker}" if pin.marker else ""
        hashes = "".join(f" \\\n    --hash=sha256:{each}" for each in pin.hashes)
        lines.append(f"{pin.name}=={pin.version}{marker}{hashes}\n")
    path.write_text("".join(lines))


def resolve(requirements: Sequence[str], constraints: Sequence[str]) -> list[dict[str, Any]]:
    """The packages that uv finds, as in a pylock.toml (PEP 751)."""
    with tempfile.TemporaryDirectory(prefix="isochrone-lock-") as folder:
        found, limits = Path(folder, "pylock.toml"), Path(folder, "constraints.txt")
        limits.write_text("\n".join(constraints))
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "-", "--no-config", "--universal", "--quiet"]
        options = [
            "--no-build",
            "--format",
            "pylock.toml",
            "--python-version",
            "3.11",
            "-c",
            str(limits),
            "-o",
            str(found),
        ]
        ended = subprocess.run([*uv, *options], input="\n".join(requirements), text=True, check=False)
        if ended.returncode:
            raise SystemExit("uv found no versions; without --keep, it may take other ones of what is locked")
        packages: list[dict[str, Any]] = tomllib.loads(found.read_text())["packages"]
        return packages


def pin_of(package: dict[str, Any]) -> Pin | None:
    """None: it is installed nowhere that this project runs."""
    name, version, marker = canonicalize_name(package["name"]), package["version"], package.get("marker", "")
    places = [each for each in ENVIRONMENTS if not marker or Marker(marker).evaluate(each)]
    if not places:
        return None
    hashes = []
    for environment in places:
        fitting = _fitting(package, environment)
        if not fitting:
            where = f"Python {environment['python_version']} on {environment['platform_machine']}"
            raise SystemExit(f"{name}=={version} has no wheel for {where}: require a version that has one")
        hashes += fitting
    return Pin(name, version, "" if len(places) == len(ENVIRONMENTS) else _short(marker), tuple(sorted(set(hashes))))


def _fitting(package: dict[str, Any], environment: dict[str, str]) -> list[str]:
    """The hashes of the wheels that an environment can install."""
    major, minor = map(int, environment["python_version"].split("."))
    machine = environment["platform_machine"]
    platforms = [f"manylinux_2_{glibc}_{machine}" for glibc in range(5, _GLIBC + 1)]
    platforms += [f"{old}_{machine}" for old in ("manylinux1", "manylinux2010", "manylinux2014", "linux")]
    tags = {
        *cpython_tags((major, minor), [f"cp{major}{minor}"], platforms),
        *compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    }
    wheels = package.get("wheels", ())
    return [each["hashes"]["sha256"] for each in wheels if tags & parse_wheel_filename(_file_name(each))[3]]


def _file_name(wheel: dict[str, Any]) -> str:
    return str(wheel.get("name") or unquote(wheel["url"].rsplit("/", 1)[1]))


def _short(marker: str) -> str:
    """Without what holds wherever this project runs."""
    return re.sub(r"python_full_version >= '3\.11' and ", "", marker)


def main(arguments: Sequence[str]) -> None:
    keep = "--keep" in arguments
    names = [each for each in arguments if each != "--keep"] or list(project()["tool"]["isochrone"]["locks"])
    LOCKS.mkdir(exist_ok=True)
    for name in names:
        path = LOCKS / f"{name}.txt"
        known = read_lock(path) if keep and path.exists() else []
        constraints = [f"{pin.name}=={pin.version}{f' ; {pin.marker}' if pin.marker else ''}" for pin in known]
        pins = [pin for package in resolve(requirements_of(name), constraints) if (pin := pin_of(package)) is not None]
        write_lock(path, pins)
        print(f"locks/{name}.txt: {len(pins)} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
