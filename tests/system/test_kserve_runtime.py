"""The command line of KServe's stock Triton runtime starts our worker, and our own runtime's command line, too."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from bench.ports import free_ports
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.variants.kserve import MODELS, serving_runtimes
from sample_models import write_models

#: The args of kserve/kserve 0.20, config/runtimes/kserve-tritonserver.yaml, behind the entry point of the image.
STOCK = (
    "tritonserver",
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)
SECONDS = 120


def own_arguments() -> tuple[str, ...]:
    runtime = serving_runtimes(Fleet(name="any"))[0]
    return tuple(runtime["spec"]["containers"][0]["args"])


@contextlib.contextmanager
def _running(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    # The image's entry point is isochrone (deploy/Containerfile).
    command = [str(Path(sys.executable).with_name("isochrone")), *words]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < ends, log.read_text()
        with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as asking:
            asking.request("GET", "/v2/health/ready")
            if asking.getresponse().status == 200:
                return
        time.sleep(0.02)


@pytest.mark.parametrize("arguments", [STOCK, own_arguments()], ids=["stock", "own"])
def test_the_runtimes_command_line_starts_our_worker(arguments: tuple[str, ...], tmp_path: Path) -> None:
    repository = write_models(tmp_path / "models", "add_sub")
    http_port, grpc_port, metrics_port = free_ports(3)
    replaced = {
        "--http-port=8080": f"--http-port={http_port}",
        "--grpc-port=9000": f"--grpc-port={grpc_port}",
        "--metrics-port=8002": f"--metrics-port={metrics_port}",
    }
    words = [replaced.get(word, word).replace(MODELS, str(repository)) for word in arguments]
    # Two tests at a time cannot have the default, 8002.
    words += [f"--metrics-port={metrics_port}"] if "--metrics-port=8002" not in arguments else []
    log = tmp_path / "log"
    with _running(words, log) as process:
        _wait_ready(process, http_port, log)
        left, right = np.full((1, 16), 3, np.float32), np.full((1, 16), 1, np.float32)
        for module, port in ((tritonclient.http, http_port), (tritonclient.grpc, grpc_port)):
            inputs = [module.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
            inputs[0].set_data_from_numpy(left)
            inputs[1].set_data_from_numpy(right)
            with contextlib.closing(module.InferenceServerClient(f"127.0.0.1:{port}")) as client:
                assert client.is_server_ready()
                answer = client.infer("add_sub", inputs)
                assert (answer.as_numpy("OUTPUT0") == 4).all()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", http_port)) as asking:
            asking.request("GET", "/v2")
            assert "name" in json.load(asking.getresponse())
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()
