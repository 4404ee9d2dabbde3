"""Facts of NVIDIA GPUs: through nvidia-ml-py where it is installed, else through ``nvidia-smi``."""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import Any

from isochrone.devices.explanation import explain
from isochrone.devices.gpu_facts import RUNTIMES, read_driver, read_runtime
from isochrone.doctor.facts import Gpu, GpuFacts, Unknown
from isochrone.doctor.reading.tree import Tree

#: Seconds for nvidia-smi; without persistence it first starts the driver, which takes 1 to 3 s per GPU.
_TIMEOUT = 20.0
_FIELDS = "index,name,persistence_mode,mig.mode.current,compute_mode,uuid"
#: The first 15 characters of nvidia-cuda-mps-control and nvidia-cuda-mps-server: what /proc shows of a name.
_MPS = "nvidia-cuda-mps"
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}


def read_gpu(tree: Tree) -> GpuFacts:
    gpus = _read_gpus()
    return GpuFacts(gpus, read_mps(tree), _read_unusable() if gpus else ())


def _read_unusable() -> tuple[str, ...]:
    """Why installed runtimes cannot use the machine's first GPU."""
    driver = read_driver()
    runtimes = [runtime for runtime in map(read_runtime, RUNTIMES) if runtime.version]
    # A reason of the driver's is the same for each runtime.
    reasons = (explain(driver, runtime, 0) for runtime in runtimes or (None,))
    return tuple(dict.fromkeys(filter(None, reasons)))


def read_mps(tree: Tree) -> bool | Unknown:
    """Whether a process of MPS runs. A container without the host's processes cannot see it."""
    names = tree.names("proc")
    if isinstance(names, Unknown):
        return names
    processes = (tree.text(f"proc/{name}/comm") for name in names if name.isdecimal())
    return any(not isinstance(name, Unknown) and name.startswith(_MPS) for name in processes)


def _read_gpus() -> tuple[Gpu, ...] | Unknown:
    try:
        import pynvml
    except ImportError:
        return _by_command()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return ()
    except pynvml.NVMLError as error:
        return Unknown(f"NVML: {error}")
    try:
        return tuple(_by_library(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        return Unknown(f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


def _by_library(library: Any, index: int) -> Gpu:
    device = library.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str) -> Any:
        try:
            return getattr(library, name)(device)
        except library.NVMLError_NotSupported:
            return None
        except library.NVMLError as error:
            return Unknown(f"{name}: {error}")

    persistence, mig = ask("nvmlDeviceGetPersistenceMode"), ask("nvmlDeviceGetMigMode")
    processes, mode = ask("nvmlDeviceGetComputeRunningProcesses"), ask("nvmlDeviceGetComputeMode")
    return Gpu(
        index,
        str(library.nvmlDeviceGetName(device)),
        persistence if isinstance(persistence, Unknown) else persistence == 1,
        # The mode now, and the one after a reset. A GPU without MIG does not support the question.
        mig if isinstance(mig, Unknown) else mig is not None and mig[0] == 1,
        processes if isinstance(processes, Unknown) else len(processes or ()),
        mode if isinstance(mode, Unknown) else _COMPUTE_MODES.get(mode, str(mode)),
    )


def _by_command() -> tuple[Gpu, ...] | Unknown:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        gpus = _ask(program, f"--query-gpu={_FIELDS}")
        processes = _ask(program, "--query-compute-apps=gpu_uuid")
    except (OSError, subprocess.SubprocessError) as error:
        return Unknown(f"nvidia-smi: {error}")
    return parse_gpus(gpus, processes)


def _ask(program: str, query: str) -> str:
    words = [program, query, "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT, check=True).stdout


def parse_gpus(gpus: str, processes: str) -> tuple[Gpu, ...] | Unknown:
    """The answers of nvidia-smi: one line per GPU, and one line per process with the GPU's identity."""
    used = [line.strip() for line in processes.splitlines()]
    found = []
    for row in csv.reader(gpus.splitlines(), skipinitialspace=True):
        if len(row) != len(_FIELDS.split(",")) or not row[0].isdecimal():
            return Unknown(f"nvidia-smi: unexpected answer '{', '.join(row)[:80]}'")
        index, name, persistence, mig, mode, identity = row
        # "[N/A]": the GPU has no MIG.
        divided = False if mig == "[N/A]" else _switch(mig)
        found.append(Gpu(int(index), name, _switch(persistence), divided, used.count(identity), _named(mode)))
    return tuple(found)


def _switch(word: str) -> bool | Unknown:
    return {"Enabled": True, "Disabled": False}.get(word, Unknown(f"nvidia-smi: {word}"))


def _named(word: str) -> str | Unknown:
    return Unknown(f"nvidia-smi: {word}") if word.startswith("[") else word
