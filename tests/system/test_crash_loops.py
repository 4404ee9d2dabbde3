"""A version that ends the process it is loaded in: alone where it is isolated; otherwise its rollout is aborted before
it ends its workers again and again, and the reason says how to isolate it."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gateway_load import Load
from stock_clients import StockClient

from bench.ports import free_ports
from gateway_process import GatewayProcess
from sample_models import write_config, write_models, write_python
from up_process import isochrone, start_up
from watching import wait_for

pytestmark = pytest.mark.long

_CRASHES = """
import ctypes


class Model:
    def load(self, context):
        ctypes.string_at(0)

    def infer(self, inputs):
        return {"OUT": inputs["IN"]}
"""
_FINE = """
class Model:
    def infer(self, inputs):
        return {"OUT": inputs["IN"]}
"""
_HANGS = """
import time


class Model:
    def load(self, context):
        time.sleep(1000)

    def infer(self, inputs):
        return {"OUT": inputs["IN"]}
"""
_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [-1] }
output { name: "OUT" data_type: TYPE_INT32 dims: [-1] }
"""
_ISOLATED = 'parameters { key: "isolation" value: { string_value: "process" } }\n'


class _Fleet:
    def __init__(self, directory: Path) -> None:
        self.api, self.port = free_ports(2)
        repository = write_models(directory / "models", "identity_int32")
        for name, more in (("inside", ""), ("isolated", _ISOLATED)):
            write_config(repository / name, _CONFIG + more)
            write_python(repository / name, _FINE, 1)
            write_python(repository / name, _CRASHES, 2)
            write_python(repository / name, _HANGS, 3)
            write_python(repository / name, _FINE, 4)
        self.file = directory / "fleet.yaml"
        self.file.write_text(
            yaml.safe_dump(
                {
                    "name": "crashes",
                    "repository": str(repository),
                    "control": {"listen": f"127.0.0.1:{self.api}"},
                    "gateways": {"gw": {"listen": f"127.0.0.1:{self.port}", "metrics_port": 0}},
                    "pools": {"cpu": {"workers": 2}},
                    "models": {name: {"version": 1} for name in ("identity_int32", "inside", "isolated")},
                }
            )
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return isochrone(*words, "--api", f"http://127.0.0.1:{self.api}")

    def deaths(self) -> list[dict[str, Any]]:
        ended = self.command("events", "--json")
        assert ended.returncode == 0, ended.stderr
        events = [json.loads(line) for line in ended.stdout.splitlines() if line.strip()]
        return [event for event in events if event["what"] == "worker died"]


def test_a_version_that_crashes_at_load(tmp_path: Path) -> None:
    fleet = _Fleet(tmp_path)
    with start_up(str(fleet.file), log=tmp_path / "up.log") as up:
        up.wait_for("Ctrl-C stops everything")
        gateway = GatewayProcess(up.process, tmp_path / "up.log")  # type: ignore[arg-type]
        gateway.http_port = gateway.grpc_port = fleet.port
        # Isolated: nobody else notices.
        with Load(gateway) as load:
            ended = fleet.command("rollout", "start", "isolated=2")
            assert ended.returncode == 1
            assert "its process" in ended.stdout + ended.stderr
            load.more(20)
        assert not load.failures
        assert fleet.deaths() == []
        # In the worker's own process: one worker loads it first, and once more to be sure; the other never does.
        ended = fleet.command("rollout", "start", "inside=2")
        assert ended.returncode == 1
        said = " ".join((ended.stdout + ended.stderr).split())
        assert "version 2 of 'inside' ended the process of worker cpu-1 twice" in said
        assert "isolation" in said
        wait_for(lambda: len(fleet.deaths()) >= 2)
        assert all("SIGSEGV" in each["detail"] and "isolation" in each["detail"] for each in fleet.deaths())
        with closing(StockClient("http", gateway)) as client:
            for model in ("identity_int32", "inside", "isolated"):
                wait_for(lambda model=model: _answers(client, model), 60)  # type: ignore[misc]
        assert [each["about"] for each in fleet.deaths()] == ["cpu-1", "cpu-1"]


def test_a_version_that_hangs_at_load_blocks_no_later_one(tmp_path: Path) -> None:
    fleet = _Fleet(tmp_path)
    with start_up(str(fleet.file), log=tmp_path / "up.log") as up:
        up.wait_for("Ctrl-C stops everything")
        started = fleet.command("rollout", "start", "inside=3", "--no-wait", "--json")
        assert started.returncode == 0, started.stderr
        hanging = json.loads(started.stdout)["identity"]

        def loads() -> bool:
            record = json.loads(fleet.command("rollout", "status", hanging, "--json").stdout)
            return any("inside 3 loading" in each["detail"] for each in record.get("workers", {}).values())

        wait_for(loads, 60)
        assert fleet.command("rollout", "abort", hanging).returncode == 0
        ended = fleet.command("rollout", "start", "inside=4")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert fleet.deaths() == []


def _answers(client: StockClient, model: str) -> bool:
    try:
        return client.infer(model, {"IN": np.array([3], np.int32)}).as_numpy("OUT").tolist() == [3]
    except Exception:
        return False
