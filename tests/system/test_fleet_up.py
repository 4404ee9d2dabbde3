"""The bundled fleet over its whole life: stock clients, the pipeline rolled out and back as one, stopped and continued.

What a newcomer is told on the terminal, and a supervisor that is killed, are in ``test_up``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from real_fleets import LIMIT, until
from typer.testing import CliRunner

from bench.ports import free_ports
from isochrone.cli.main import app
from isochrone.control.fleet.bundled.writing import write_bundled

ANSWERING = ("preprocess", "detector", "pipeline")


class BundledFleet:
    """``isochrone up`` on the bundled fleet, on ports that no other test has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.api, self.gateway = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.file = write_bundled(directory)
        text = self.file.read_text()
        for old, new in (
            ("127.0.0.1:8003", self.api),
            ('"127.0.0.1:8000", metrics_port: 9000', f'"{self.gateway}", metrics_port: 0'),
            ("workers: 3", "workers: 2"),
        ):
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.directory / "up.log"
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "isochrone", "up", "--state", str(self.directory)], stdout=file, stderr=file
            )
        began = log.stat().st_size
        until(lambda: "Ctrl-C stops everything" in log.read_text()[began:] or self._died(log), "the fleet")

    def _died(self, log: Path) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, log.read_text()
        return False

    def processes(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            left = self.processes()
            self.process.kill()
            self.process.wait()
            psutil.wait_procs(left, timeout=LIMIT)

    def served(self) -> tuple[int, dict[str, str]]:
        """The committed epoch and its versions."""
        status = httpx.get(f"http://{self.api}/v1/status", trust_env=False, timeout=LIMIT).json()
        return status["epoch"], {model["name"]: model["version"] for model in status["models"]}

    def infer(self, module: Any) -> str:
        """Which version answers the pipeline, asked by a stock client."""
        client = module.InferenceServerClient(self.gateway)
        try:
            given = [_given(module, each) for each in _inputs(client.get_model_metadata("pipeline"))]
            answer = client.infer("pipeline", given).get_response()
            version = answer["model_version"] if isinstance(answer, dict) else answer.model_version
            return str(version)
        finally:
            client.close()


def _inputs(metadata: Any) -> Any:
    return metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs


def _given(module: Any, told: Any) -> Any:
    name, datatype, shape = (
        (told["name"], told["datatype"], told["shape"])
        if isinstance(told, dict)
        else (told.name, told.datatype, list(told.shape))
    )
    sizes = [1 if size < 0 else size for size in shape]
    kinds = {"FP32": np.float32, "UINT8": np.uint8, "INT32": np.int32}
    given = module.InferInput(name, sizes, datatype)
    given.set_data_from_numpy(np.zeros(sizes, kinds[datatype]))
    return given


@pytest.mark.long
def test_the_bundled_fleet_from_its_start_to_its_second_life(tmp_path: Path) -> None:
    fleet = BundledFleet(tmp_path)
    try:
        fleet.start()
        first = fleet.processes()
        assert fleet.served() == (1, dict.fromkeys(ANSWERING, "1"))
        for module in (tritonclient.http, tritonclient.grpc):
            assert fleet.infer(module) == "1"

        words = ["rollout", "start", *(f"{model}=2" for model in ANSWERING), "--api", fleet.api]
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
        assert fleet.served() == (2, dict.fromkeys(ANSWERING, "2"))
        for module in (tritonclient.http, tritonclient.grpc):
            assert fleet.infer(module) == "2"
        # One model is named; what changed together goes back together.
        ended = CliRunner().invoke(app, ["rollout", "rollback", "detector", "--api", fleet.api])
        assert ended.exit_code == 0, ended.output
        assert fleet.served() == (3, dict.fromkeys(ANSWERING, "1"))
        assert fleet.infer(tritonclient.http) == "1"
        assert CliRunner().invoke(app, words).exit_code == 0

        # Nothing outlives a supervisor that is killed.
        assert fleet.process is not None
        fleet.process.kill()
        fleet.process.wait(LIMIT)
        assert not psutil.wait_procs(first, timeout=LIMIT)[1]

        # What is committed stands, whatever the file said when it was first applied.
        fleet.start()
        assert fleet.served() == (4, dict.fromkeys(ANSWERING, "2"))
        for module in (tritonclient.http, tritonclient.grpc):
            assert fleet.infer(module) == "2"
        second = fleet.processes()
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.process.wait(LIMIT) == 0
        assert not any(process.is_running() for process in second)
    finally:
        fleet.kill()
