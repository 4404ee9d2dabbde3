"""The contenders: our worker, our worker behind our gateway, and Triton, all over the same models.

Triton runs them in its own onnxruntime backend if `scripts/build_triton_onnxruntime.sh` has built it, otherwise in its
python backend, which is slower: the report says which.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.proxies import isochrone_gateway
from bench.gateway.proxies.upstream import Upstream
from bench.ports import free_ports
from bench.realistic.models import COSTS, models, write_repository
from bench.worker.peers import Peer
from bench.worker.peers.process import (
    HOST,
    PEERS,
    SERVERS,
    answers,
    environment_python,
    installed_version,
    running,
    scratch,
)
from bench.worker.peers.triton import serve_repository

WORKER, GATEWAY, TRITON = "worker", "gateway", "triton"
NATIVE_BACKENDS = PEERS / "triton-backends"


@dataclass(frozen=True)
class Contender:
    """A server that takes requests, and the worker whose CPU is counted apart; they are one unless it is a gateway."""

    name: str
    peer: Peer
    worker: Peer


@contextmanager
def worker(files: dict[str, Path], options: Sequence[str] = ()) -> Iterator[Peer]:
    """`isochrone serve` with every model."""
    with scratch("realistic") as directory:
        repository = write_repository(directory / "models", files)
        with serve(repository, directory, options) as peer:
            yield peer


@contextmanager
def serve(repository: Path, directory: Path, options: Sequence[str] = ()) -> Iterator[Peer]:
    """`isochrone serve` over a repository; `directory` takes its log."""
    python = Path(sys.executable)
    http_port, grpc_port = free_ports(2)
    url = f"http://{HOST}:{http_port}"
    command: list[str | Path] = [
        *(python.parent / "isochrone", "serve", repository, "--host", HOST, "--no-allow-metrics"),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port), *options),
    ]
    log = directory / "worker.log"
    with running("isochrone", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
        version = installed_version(python, "isochrone")
        address = f"{HOST}:{grpc_port}"
        yield Peer(WORKER, version, pid, log, tuple(COSTS), http_url=url, grpc_address=address)


@contextmanager
def gateway(behind: Peer) -> Iterator[Peer]:
    """`isochrone gateway` before the worker."""
    ports = [int(str(address).rpartition(":")[2]) for address in (behind.http_url, behind.grpc_address)]
    with isochrone_gateway.start([Upstream(*ports)], model="small") as peer:
        yield peer


@contextmanager
def triton(files: dict[str, Path]) -> Iterator[Peer]:
    """Real Triton with every model, in its native backend if that is there."""
    python = environment_python("")
    native = is_native()
    with scratch("realistic-triton") as directory:
        repository = directory / "models"
        if native:
            write_repository(repository, files)
        else:
            _write_python_backend(repository, files)
        backends = NATIVE_BACKENDS if native else None
        with serve_repository(repository, python, directory, tuple(COSTS), backends=backends) as peer:
            yield peer


def is_native() -> bool:
    return (NATIVE_BACKENDS / "onnxruntime" / "libtriton_onnxruntime.so").exists()


def _write_python_backend(repository: Path, files: dict[str, Path]) -> None:
    for model in models(files):
        version = repository / model.name / "1"
        version.mkdir(parents=True)
        parameters = "".join(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
            for key, value in (("onnx_file", str(model.file.resolve())), ("intra_op_threads", "1"))
        )
        config = model.config.replace('backend: "onnxruntime"', 'backend: "python"') + parameters
        (repository / model.name / "config.pbtxt").write_text(config)
        shutil.copyfile(SERVERS / "triton_onnx.py", version / "model.py")
