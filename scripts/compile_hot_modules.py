"""Compile the modules that every request passes, from the same source, with mypyc.

``compile_package`` copies the package and puts an extension module beside each hot module; Python prefers it to the
``.py`` file. The package works the same without any of them.

    python scripts/compile_hot_modules.py build/compiled     # PYTHONPATH=build/compiled runs it

The copy that mypyc reads is marked first, and what would behave differently is refused (``native_classes``). The C code
that it writes is corrected (``corrected_c``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from corrected_c import corrected
from native_classes import inherited_by_interpreted, mark, read_classes, refuse_differences

ROOT = Path(__file__).resolve().parent.parent

#: The version whose behaviour the tests were run with: its C code differs from release to release.
MYPYC = "mypy[mypyc]==2.4.1"
#: What the build needs beside it.
REQUIREMENTS = (MYPYC, "setuptools>=80")
_TESTED_PYTHONS = ((3, 11), (3, 12))

#: Warnings of mypyc after which the code does something else than Python: an attribute without its default value.
_FAULTS = (": error: ", "Unsupported default attribute value")

_MYPY_CONFIG = """\
[mypy]
python_version = {version}
mypy_path = {path}
no_site_packages = true
ignore_missing_imports = true
follow_imports = silent
"""


def settings() -> dict[str, Any]:
    """What pyproject.toml says of the compiled build."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["tool"]["isochrone"]["compiled"])


def hot_modules(package: Path) -> list[Path]:
    """The modules to compile, relative to the folder of ``package``."""
    chosen = settings()
    compiled, interpreted = (
        {path for pattern in chosen[key] for path in _matching(package, pattern)} for key in ("modules", "interpreted")
    )
    return sorted(path.relative_to(package.parent) for path in compiled - interpreted)


def _matching(package: Path, pattern: str) -> list[Path]:
    found = [path for path in package.glob(pattern) if path.name != "__init__.py"]
    if not found:
        raise SystemExit(f"pyproject.toml: tool.isochrone.compiled: no module matches {pattern!r}")
    return found


def is_tested_with_this_python() -> bool:
    return sys.version_info[:2] in _TESTED_PYTHONS and sys.implementation.name == "cpython"


def has_compiler() -> bool:
    """Whether a C compiler and Python's headers are here."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return shutil.which(command.split()[0]) is not None and header.exists()


def compile_package(package: Path, out: Path) -> list[Path]:
    """Copy ``package`` into ``out`` and compile its hot modules there; the extension modules, relative to ``out``."""
    if not has_compiler():
        raise SystemExit("compiling needs a C compiler and Python's headers (Debian: gcc python3-dev)")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(package, out / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    modules = hot_modules(package)
    work = out / ".build"
    marked = work / "marked"
    shutil.copytree(out / package.name, marked / package.name)
    classes = read_classes(marked, modules)
    refuse_differences(classes)
    inherited = inherited_by_interpreted(classes) | set(settings()["inherited"])
    for module in modules:
        path = marked / module
        path.write_text(mark(path.read_text(), inherited))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (marked / "mypy.ini").write_text(_MYPY_CONFIG.format(version=python, path=marked))
    # In a process of its own: mypy and setuptools keep state, and they read the current folder.
    command = [sys.executable, __file__, "--build", str(marked), *map(str, modules)]
    made = subprocess.run(command, cwd=marked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    faults = [line for line in made.stdout.splitlines() if any(fault in line for fault in _FAULTS)]
    if made.returncode or faults:
        raise SystemExit("\n".join(faults or made.stdout.splitlines()[-40:]) + "\nthe hot modules were not compiled")
    built = sorted(path.relative_to(marked) for path in [*marked.glob("*.so"), *(marked / package.name).rglob("*.so")])
    for path in built:
        shutil.copy2(marked / path, out / path)
    shutil.rmtree(work)
    return built


def _build(folder: Path, modules: Sequence[str]) -> None:
    """Have mypyc write C, correct it and compile it, with as many compilers as there are cores."""
    from mypyc.build import mypycify
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        def build_extension(self, extension: Extension) -> None:
            def compiled(source: str) -> list[str]:
                objects: list[str] = self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=extension.include_dirs,
                    extra_postargs=extension.extra_compile_args,
                )
                return objects

            with ThreadPoolExecutor(os.process_cpu_count() if sys.version_info >= (3, 13) else os.cpu_count()) as pool:
                sources = sorted(extension.sources, key=lambda source: -Path(source).stat().st_size)
                extension.extra_objects = [one for objects in pool.map(compiled, sources) for one in objects]
            extension.sources = []
            super().build_extension(extension)

    extensions = mypycify(
        ["--config-file", str(folder / "mypy.ini"), *modules],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name="isochrone",
        target_dir=str(folder / "c"),
    )
    for path in sorted((folder / "c").glob("__native*.c")):
        path.write_text(corrected(path.read_text()))
    setup(
        name="isochrone-hot-modules",
        packages=[],
        ext_modules=extensions,
        cmdclass={"build_ext": ParallelBuild},
        script_args=["-q", "build_ext", "--inplace"],
    )


def digest(package: Path) -> str:
    """Of everything the compiled package depends on."""
    compiler = [os.environ.get(name, "") for name in ("CC", "CFLAGS", "LDFLAGS")]
    found = hashlib.sha256(f"{sys.version} {version('mypy')} {compiler}".encode())
    sources = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in [*sorted(Path(__file__).parent.glob("*.py")), ROOT / "pyproject.toml", *sorted(sources)]:
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def main() -> None:
    if sys.argv[1:2] == ["--build"]:
        _build(Path(sys.argv[2]), sys.argv[3:])
        return
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    package, out = ROOT / "src" / "isochrone", Path(sys.argv[1]).resolve()
    stamp, wanted = out / ".digest", digest(package)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"compiling {len(hot_modules(package))} modules: some minutes", flush=True)
    compile_package(package, out)
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
