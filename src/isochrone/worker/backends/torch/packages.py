"""What a ``.pt2`` file holds, from its zip directory alone: an exported program, or an AOTInductor package.

Both are archives of PyTorch's PT2 format. An AOTInductor package contains a shared library beside a JSON file that says
which machine and device it was compiled for. Nothing here imports torch.

torch extracts a package when it loads it, and keeps the files until the model is dropped.
"""

from __future__ import annotations

import json
import shutil
import threading
import zipfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from isochrone.errors import Unavailable

_COMPILED = "/data/aotinductor/"
_DESCRIPTION = "_metadata.json"
#: What a library that uses the C++ runtime of the process, as torch does, says that it needs.
_SHARED_RUNTIME = b"\0libstdc++.so.6\0"
_READ_BYTES = 1 << 20
#: Words of ``AOTI_CPU_ISA`` → Linux's name of that feature. A library that uses a missing one ends the process.
_FEATURES = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AMX_TILE": "amx_tile"}


def compiled_target(path: Path) -> dict[str, str] | None:
    """The ``AOTI_…`` entries of an AOTInductor package; None: the file is not one."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Names begin with the archive's own: model/data/aotinductor/model/….so.
            names = [name for name in archive.namelist() if _COMPILED in f"/{name}"]
            descriptions = [json.loads(archive.read(name)) for name in names if name.endswith(_DESCRIPTION)]
    except (OSError, ValueError, zipfile.BadZipFile):
        return None  # torch says what is wrong with it
    if not names:
        return None
    return {key: str(value) for description in descriptions for key, value in description.items()}


def needs_own_process(target: dict[str, str] | None) -> bool:
    """Whether a model runs in a process of its own unless its configuration says otherwise; ``target`` as
    ``compiled_target`` returns it.

    A package is native code that nobody here has seen: a crash of it ends its process. A worker must not end with all
    its models because one of them is loaded.
    """
    return target is not None and target.get("AOTI_DEVICE_KEY") == "cuda"


#: Held while a package is loaded or dropped: torch's loader extracts files, opens a library and removes both without a
#: lock of its own.
PACKAGES = threading.Lock()
#: torch's own choice, whatever TMPDIR says.
EXTRACTED_TO = Path("/tmp")


def dropping(module: Any) -> AbstractContextManager[Any]:
    """The last reference to what a file held goes inside. What is not a torch module is a package."""
    return nullcontext() if module is None or hasattr(module, "modules") else PACKAGES


def check_room_to_extract(path: Path, folder: Path = EXTRACTED_TO) -> None:
    """Raises ``Unavailable`` if a package does not fit into the folder to which torch extracts it."""
    with zipfile.ZipFile(path) as archive:
        needed = sum(entry.file_size for entry in archive.infolist() if _COMPILED in f"/{entry.filename}")
    usage = shutil.disk_usage(folder)
    if needed > usage.free:
        raise Unavailable(
            f"{path}: torch extracts this package to {folder}, where it needs {needed:,} bytes while the model is "
            f"loaded; {usage.free:,} of {usage.total:,} bytes are free there"
        )


def has_own_runtime(path: Path) -> bool:
    """Whether a package's library contains libstdc++ instead of using that of the process.

    A compiler links it so where it finds libstdc++.a and no libstdc++.so. The library's regular expressions then meet
    locales of torch's own libstdc++, and the process ends with a segmentation fault while the package is loaded.
    """
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _COMPILED in f"/{name}" and name.endswith(".so")]
        return any(_is_library_without(archive, name, _SHARED_RUNTIME) for name in names)


def _is_library_without(archive: zipfile.ZipFile, name: str, text: bytes) -> bool:
    with archive.open(name) as file:
        read = file.read(_READ_BYTES)
        if not read.startswith(b"\x7fELF"):
            return False  # torch says what is wrong with it
        end = b""
        while read:
            if text in end + read:
                return False
            end, read = read[-len(text) :], file.read(_READ_BYTES)
    return True


def misfit(
    target: dict[str, str], device: str, machine: str, platform: str, features: frozenset[str]
) -> tuple[str, str] | None:
    """(expected, given) of a package that this machine cannot run; None if it can, as far as the package says.

    ``device`` is ``cpu`` or ``cuda``; ``machine`` and ``platform`` are as ``platform.machine()`` and ``sys.platform``
    name them; ``features`` are the CPU's, empty if they are not known.
    """
    compiled_for = target.get("AOTI_DEVICE_KEY", "cpu")
    if compiled_for != device:
        return f"an AOTInductor package compiled for the device '{device}'", f"one for '{compiled_for}'"
    compiled = target.get("AOTI_MACHINE", machine)
    if compiled.lower() != machine.lower():
        return f"an AOTInductor package compiled on {machine}, as this machine is", f"one for {compiled}"
    system = target.get("AOTI_PLATFORM", platform)
    if system != platform:
        return f"an AOTInductor package compiled on {platform}", f"one for {system}"
    for word in target.get("AOTI_CPU_ISA", "").split():
        if features and word in _FEATURES and _FEATURES[word] not in features:
            return "an AOTInductor package compiled for this CPU", f"one that needs {word}, which the CPU has not"
    return None


def cpu_features(description: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        lines = description.read_text().splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    return next(
        (frozenset(value.split()) for key, _, value in named if key.strip() in ("flags", "Features")), frozenset()
    )
