"""The servers that are loaded: our worker or real Triton, with one model that sleeps and one that returns its input.

The sleeping model makes the server's capacity a known figure that no generator limits; the other one costs nothing, so
that the generators themselves matter.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.load_tool.cores import Cores, on_cores
from bench.load_tool.isochrone_bench import ENVIRONMENT, ISOCHRONE
from bench.ports import free_ports
from bench.worker.models import INPUT, OUTPUT
from bench.worker.peers import Peer, triton
from bench.worker.peers.process import HOST, answers, environment_python, running, scratch
from bench.worker.scenarios import Scenario
from isochrone import __version__

WIDTH = 16
SLEEPING = Scenario("sleeping", "sleeping", (1, WIDTH))
IDENTITY = Scenario("identity", "identity", (1, WIDTH))
MODELS = {scenario.name: scenario for scenario in (SLEEPING, IDENTITY)}
SERVERS = ("isochrone", "triton")
#: Of one run of the sleeping model; so many run side by side.
SLEEP_SECONDS = 0.002
INSTANCES = 4

_CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 1
input {{ name: "{input}" data_type: TYPE_FP32 dims: [{width}] }}
output {{ name: "{output}" data_type: TYPE_FP32 dims: [{width}] }}
instance_group {{ count: {instances} kind: KIND_CPU }}
"""
_OURS = """
import time


class Model:
    def infer(self, inputs):
        {sleep}
        return {{"{output}": inputs["{input}"]}}
"""
_TRITONS = """
import time

import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            {sleep}
            data = triton.get_input_tensor_by_name(request, "{input}").as_numpy()
            answers.append(triton.InferenceResponse([triton.Tensor("{output}", data)]))
        return answers
"""


@contextmanager
def server(name: str, cores: Cores) -> Iterator[Peer]:
    """One of ``SERVERS`` while the block runs. Raises ``PeerUnavailable``."""
    with scratch("load-tool") as directory, ExitStack() as stack:
        code = _OURS if name == "isochrone" else _TRITONS
        _write_models(directory / "models", code)
        with on_cores(cores):
            peer = stack.enter_context(_isochrone(directory) if name == "isochrone" else _triton(directory))
        yield peer


@contextmanager
def _isochrone(directory: Path) -> Iterator[Peer]:
    http_port, grpc_port = free_ports(2)
    url = f"http://{HOST}:{http_port}"
    log = directory / "isochrone.log"
    command: list[str | Path] = [
        *(*ISOCHRONE, "serve", directory / "models", "--host", HOST, "--no-allow-metrics"),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
    ]
    ready = f"{url}/v2/health/ready"
    with running("isochrone", command, lambda: answers(ready), log=log, environment=ENVIRONMENT) as pid:
        address = f"{HOST}:{grpc_port}"
        yield Peer("isochrone", __version__, pid, log, tuple(MODELS), http_url=url, grpc_address=address)


@contextmanager
def _triton(directory: Path) -> Iterator[Peer]:
    python = environment_python("")
    with triton.serve_repository(directory / "models", python, directory, tuple(MODELS)) as peer:
        yield peer


def _write_models(directory: Path, code: str) -> None:
    for name, sleep in ((SLEEPING.model, f"time.sleep({SLEEP_SECONDS})"), (IDENTITY.model, "pass")):
        version = directory / name / "1"
        version.mkdir(parents=True)
        instances = INSTANCES if name == SLEEPING.model else 1
        fields = {"name": name, "input": INPUT, "output": OUTPUT, "width": WIDTH, "instances": instances}
        (directory / name / "config.pbtxt").write_text(_CONFIG.format(**fields).lstrip())
        (version / "model.py").write_text(textwrap.dedent(code).format(sleep=sleep, **fields).lstrip())
