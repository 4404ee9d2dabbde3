"""Starts NVIDIA's real Triton server: the binary inside nvidia-pytriton, driven directly.

pytriton's own Python API would add a proxy process between Triton and the model; here the python backend
loads the models itself, as in NVIDIA's container. No default of Triton is changed in a way that slows
it down.
"""

import json
import os
import subprocess
import sysconfig
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.ports import free_ports
from bench.worker.peers.process import (
    HOST,
    Peer,
    PeerUnavailable,
    answers,
    environment_python,
    running,
    scratch,
)
from bench.worker.peers.triton_repository import MODEL_NAMES, write_triton_repository


@contextmanager
def start(
    onnx_files: Mapping[str, Path],
    *,
    intra_op_threads: int = 1,
    instances: int = 1,
    queue_timeout_microseconds: int | None = None,
) -> Iterator[Peer]:
    """Real Triton with every bench model while the block runs."""
    python = environment_python("")
    with scratch("triton") as directory:
        repository = write_triton_repository(
            directory / "models",
            onnx_files,
            intra_op_threads=intra_op_threads,
            instances=instances,
            queue_timeout_microseconds=queue_timeout_microseconds,
        )
        with serve_repository(repository, python, directory, MODEL_NAMES) as peer:
            yield peer


@contextmanager
def serve_repository(
    repository: Path,
    python: Path,
    directory: Path,
    models: tuple[str, ...],
    flags: tuple[str, ...] = (),
    *,
    backends: Path | None = None,
    completes: bool = False,
) -> Iterator[Peer]:
    """Triton over a repository that is already written; `directory` takes its log and its backend folder.

    `backends`: a folder of other backends than the python one that the package brings. `completes`: models may complete
    their configurations.
    """
    packages = _site_packages(python)
    server = packages / "pytriton" / "tritonserver"
    http_port, grpc_port = free_ports(2)
    # Ours to delete afterwards: a stub that is killed leaves its region in /dev/shm.
    shared_memory_prefix = f"peer-triton-{os.getpid()}-{http_port}-"
    log = directory / "triton.log"
    command: list[str | Path] = [
        server / "bin" / "tritonserver",
        f"--model-repository={repository}",
        f"--backend-directory={backends or _backends(server, python, directory)}",
        f"--backend-config=python,shm-region-prefix-name={shared_memory_prefix}",
        f"--http-address={HOST}",
        f"--http-port={http_port}",
        f"--grpc-address={HOST}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
        "--exit-timeout-secs=5",
        *(() if completes else ("--disable-auto-complete-config",)),
        *flags,
    ]
    environment = _environment(python, packages)
    url = f"http://{HOST}:{http_port}"
    try:
        with running(
            "triton",
            command,
            lambda: answers(f"{url}/v2/health/ready"),
            log=log,
            environment=environment,
            # On a busy machine it may abort while its python models start (triton-inference-server/server#8882).
            starts=3,
            timeout_seconds=180.0,
        ) as pid:
            yield Peer(
                name="triton",
                version=_version(url),
                pid=pid,
                log=log,
                models=models,
                http_url=url,
                grpc_address=f"{HOST}:{grpc_port}",
            )
    finally:
        for region in Path("/dev/shm").glob(f"{shared_memory_prefix}*"):
            region.unlink(missing_ok=True)


def cache_directory(python: Path) -> Path:
    """Where the real binary's response caches lie."""
    return _site_packages(python) / "pytriton" / "tritonserver" / "caches"


def help_text(python: Path) -> str:
    """What the real binary prints for --help."""
    packages = _site_packages(python)
    environment = {**os.environ, **_environment(python, packages)}
    binary = packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    result = subprocess.run(
        [binary, "--help"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return result.stdout + result.stderr


def _site_packages(python: Path) -> Path:
    for packages in python.parents[1].glob("lib/python3.*/site-packages"):
        if (packages / "pytriton" / "tritonserver").is_dir():
            return packages
    raise PeerUnavailable(f"nvidia-pytriton is not installed beside {python}: run `make peers`")


def _python_version(packages: Path) -> str:
    return packages.parent.name.removeprefix("python")


def _backends(server: Path, python: Path, directory: Path) -> Path:
    """A backend folder whose stub fits the peers' interpreter: the package ships one per Python version."""
    version = _python_version(_site_packages(python))
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        shipped = sorted(path.name for path in (server / "python_backend_stubs").iterdir())
        raise PeerUnavailable(
            f"Triton ships python-backend stubs for Python {', '.join(shipped)}; {python} is {version}"
        )
    folder = directory / "backends" / "python"
    folder.mkdir(parents=True)
    shipped_backend = server / "backends" / "python"
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (folder / name).symlink_to(shipped_backend / name)
    (folder / "triton_python_backend_stub").symlink_to(stub)
    return folder.parent


def _environment(python: Path, packages: Path) -> dict[str, str]:
    # The stub embeds the interpreter: it finds the environment through the first python3 on PATH, and
    # libpython through the loader, where an interpreter outside /usr keeps its own beside itself.
    libraries = [str(packages / "nvidia_pytriton.libs")]
    interpreter_libraries = sysconfig.get_config_var("LIBDIR")
    shared_library = f"libpython{_python_version(packages)}.so.1.0"
    if interpreter_libraries and (Path(interpreter_libraries) / shared_library).exists():
        libraries.append(interpreter_libraries)
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join([*libraries, *([inherited] if inherited else [])]),
        "VIRTUAL_ENV": str(python.parents[1]),
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": "",
    }


def _version(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v2", timeout=5) as response:
        return str(json.load(response)["version"])
