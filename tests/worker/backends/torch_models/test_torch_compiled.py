"""AOTInductor packages in the torch backend. A package is compiled once, which takes a C++ compiler."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from config_text import tensors
from load_contexts import MakeContext
from torch._inductor import cpu_vec_isa

from isochrone.errors import ConfigError, InvalidArgument, Unavailable
from isochrone.worker.backends.torch.backend import load
from isochrone.worker.backends.torch.packages import (
    EXTRACTED_TO,
    compiled_target,
    cpu_features,
    has_own_runtime,
    misfit,
)

ROWS = torch.export.Dim("rows", min=1, max=64)

# A compiler makes the package.
pytestmark = pytest.mark.long


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, shift: torch.Tensor, *, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * scale + shift, x.sum(1)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.fail("AOTInductor needs a C++ compiler: install g++ or clang++")
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    # Three tensors: of one tensor that is given thrice, the compiled code would read one.
    examples = [torch.ones(3, 2) for _ in range(3)]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path.parent / "cache"))
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Scaled(), tuple(examples[:2]), {"scale": examples[2]}, dynamic_shapes=[{0: ROWS}, {0: ROWS}, {0: ROWS}]
        )
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


def changed(package: Path, directory: Path, **entries: str) -> None:
    """A copy of the package that says it was compiled for something else."""
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(directory / "model.pt2", "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("_metadata.json"):
                content = json.dumps({**json.loads(content), **entries}).encode()
            copy.writestr(name, content)


def rows(value: float, count: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((count, 2), value, np.float32)


CONFIG = tensors("input", argument__0="FP32", argument__1="FP32", scale="FP32") + tensors("output", y="FP32", s="FP32")


def test_a_package_runs(tmp_path: Path, make_context: MakeContext, package: Path) -> None:
    shutil.copy(package, tmp_path / "model.pt2")
    executable = load(make_context(CONFIG))
    for count in (1, 5):
        inputs = {"argument__0": rows(3, count), "argument__1": rows(1, count), "scale": rows(10, count)}
        outputs = executable.execute(inputs, None)
        assert outputs["y"].tolist() == rows(31, count).tolist()
        assert outputs["s"].tolist() == [6] * count
        assert list(executable.execute(inputs, ("s",))) == ["s"]
    executable.close()


def test_a_package_is_extracted_where_room_is_checked(
    tmp_path: Path, make_context: MakeContext, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(package, tmp_path / "model.pt2")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = mapped_libraries()
    executable = load(make_context(CONFIG))
    (library,) = mapped_libraries() - before
    assert library.parts[:2] == EXTRACTED_TO.parts
    executable.close()
    assert not library.exists()
    with zipfile.ZipFile(package) as archive:
        needed = next(entry.file_size for entry in archive.infolist() if entry.filename.endswith(".so"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=10**9, free=needed - 1))
    with pytest.raises(
        Unavailable, match=r"extracts this package to /tmp, where it needs .* of 1,000,000,000 bytes are"
    ):
        load(make_context(CONFIG))
    assert mapped_libraries() <= {*before, library}


def test_a_load_runs_no_compiler(
    tmp_path: Path, make_context: MakeContext, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(package, tmp_path / "model.pt2")
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda isa, code: pytest.fail("built a program"))
    load(make_context(CONFIG)).close()
    # What is compiled later asks the compiler.
    assert cpu_vec_isa.valid_vec_isa_list.cache_info().currsize == 0


def test_a_package_with_a_runtime_of_its_own_is_refused(
    tmp_path: Path, make_context: MakeContext, package: Path
) -> None:
    assert not has_own_runtime(package)
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(tmp_path / "model.pt2", "w") as copy:
        for name in source.namelist():
            copy.writestr(name, source.read(name).replace(b"\0libstdc++.so.6\0", b"\0libstdc++.so.7\0"))
    with pytest.raises(ConfigError, match=r"uses the shared libstdc\+\+: .* given one that contains libstdc\+\+"):
        load(make_context(CONFIG))


def mapped_libraries() -> set[Path]:
    """The libraries of packages that this process has open."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path(line.split()[5]) for line in lines if len(line.split()) > 5}
    return {path for path in paths if "aotinductor" in path.parts}


def test_a_misnamed_input_is_refused_with_the_names(tmp_path: Path, make_context: MakeContext, package: Path) -> None:
    shutil.copy(package, tmp_path / "model.pt2")
    config = CONFIG.replace('"scale"', '"other"')
    with pytest.raises(ConfigError, match="expected the arguments of forward: argument__0, argument__1, scale"):
        load(make_context(config))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {"AOTI_DEVICE_KEY": "cuda"},
            "compiled for the device 'cpu': compile it for this machine, given one for 'cuda'",
        ),
        ({"AOTI_MACHINE": "riscv64"}, f"compiled on {platform.machine()}, .* given one for riscv64"),
        ({"AOTI_PLATFORM": "win32"}, f"compiled on {sys.platform}: .* given one for win32"),
    ],
)
def test_a_package_for_another_machine_is_refused(
    tmp_path: Path, make_context: MakeContext, package: Path, entries: dict[str, str], message: str
) -> None:
    changed(package, tmp_path, **entries)
    with pytest.raises(ConfigError, match=rf"model\.pt2: model file: expected an AOTInductor package {message}"):
        load(make_context(CONFIG))


def test_a_package_whose_library_is_damaged_is_named(tmp_path: Path, make_context: MakeContext, package: Path) -> None:
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(tmp_path / "model.pt2", "w") as copy:
        for name in source.namelist():
            copy.writestr(name, b"no library" if name.endswith(".so") else source.read(name))
    with pytest.raises(InvalidArgument, match=r"model\.pt2: torch cannot load this file"):
        load(make_context(CONFIG))


def test_what_an_archive_says(tmp_path: Path, package: Path) -> None:
    target = compiled_target(package)
    assert target is not None
    assert (target["AOTI_DEVICE_KEY"], target["AOTI_MACHINE"]) == ("cpu", platform.machine())
    assert misfit(target, "cpu", platform.machine(), sys.platform, cpu_features()) is None
    (tmp_path / "garbage.pt2").write_bytes(b"garbage")
    assert compiled_target(tmp_path / "garbage.pt2") is None


def test_a_cpu_without_the_features_of_a_package(tmp_path: Path) -> None:
    target = {"AOTI_CPU_ISA": "AVX512 AMX_TILE", "AOTI_MACHINE": "x86_64"}
    assert misfit(target, "cpu", "x86_64", "linux", frozenset()) is None
    assert misfit(target, "cpu", "x86_64", "linux", frozenset({"avx512f", "amx_tile"})) is None
    expected = "an AOTInductor package compiled for this CPU", "one that needs AMX_TILE, which the CPU has not"
    assert misfit(target, "cpu", "x86_64", "linux", frozenset({"avx512f"})) == expected
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\n")
    assert cpu_features(tmp_path / "cpuinfo") == {"fpu", "avx2"}
    assert cpu_features(tmp_path / "none") == frozenset()
