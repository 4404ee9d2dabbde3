"""Runs the tests with the lowest version of every dependency that pyproject.toml allows.

    python scripts/test_lowest.py VENVDIR [pytest arguments]

Only the product's own dependencies are pinned: the tools that tests use come as they are. Without arguments for pytest
the tests of every folder run but those that start fleets (their dependencies are the same) and those of outside peers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)(?P<extras>\[[^]]*\])?>=(?P<version>[0-9.]+)$")
#: Of the development tools, those that tests import.
TOOLS = (
    *("grpcio-reflection", "grpcio-health-checking", "h2", "hpack", "hypothesis", "pytest", "pytest-timeout"),
    *("psutil", "jsonschema", "cryptography", "geventhttpclient", "aiohttp", "matplotlib", "pillow"),
    "kubernetes-validate",
)
TESTS = ("protocol", "wire", "models", "worker", "gateway", "control", "store", "observe", "cli", "engines")
#: Tests of the stock client's newer ways: before 2.73 its BF16 inputs were FP32 arrays.
_NEWER_CLIENT = "not bf16 and not BF16"
#: Tests of runtimes that are extras: torch alone is gigabytes.
IGNORED = (
    "engines/ray_engine/test_ray_engine_races.py",
    "engines/ray_engine/test_ray_memory.py",
    "models/sources/test_objects.py",
    "models/test_openvino_file.py",
    "protocol/compression/test_zstd_bodies.py",
    "worker/activation_cache/test_ssim_definition.py",
    "worker/backends/fil",
    "worker/backends/python/triton_models/test_triton_tensors.py",
    "worker/backends/test_openvino.py",
    "worker/backends/torch_models",
    "worker/backends/transformer",
    "worker/catalog/test_torch_instances.py",
    "worker/remote/test_refused_zstd.py",
    "worker/remote/test_remote_zstd.py",
)


def lowest(requirements: list[str]) -> list[str]:
    """Each "name>=version" as "name==version"."""
    pins = []
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement.replace(" ", ""))
        if found is None:
            raise SystemExit(f"pyproject.toml: dependency '{requirement}': expected 'name>=version'")
        pins.append(f"{found['name']}{found['extras'] or ''}=={found['version']}")
    return pins


def install(python: Path, pins: list[str]) -> None:
    pip = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True)
    subprocess.run([*pip, *pins, *TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)


def main() -> int:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    directory = Path(sys.argv[1]).resolve()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = lowest([*project["dependencies"], *project["optional-dependencies"]["onnx"]])
    python = directory / "bin" / "python"
    stamp = directory / ".pins"
    if not stamp.exists() or stamp.read_text() != "\n".join(pins):
        venv.create(directory, clear=True, with_pip=True)
        install(python, pins)
        stamp.write_text("\n".join(pins))
    print("lowest:", ", ".join(pins), flush=True)
    chosen = [*(f"tests/{name}" for name in TESTS), *(f"--ignore=tests/{name}" for name in IGNORED)]
    tests = sys.argv[2:] or [*chosen, "-k", _NEWER_CLIENT]
    # Old versions call what newer ones of their own dependencies deprecate, which is no fault of the product's.
    warnings = ("-W", "ignore::DeprecationWarning")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *warnings, "-m", "not peers", *tests]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}).returncode


if __name__ == "__main__":
    raise SystemExit(main())
