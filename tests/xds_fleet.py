"""A controller of a real fleet that serves xDS, and clients that follow it, for tests.

The clients are processes of their own: grpcio reads its bootstrap once. Must never leave a process behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.control.checker import Commit, check
from bench.control.fleet_run import SupervisedFleet
from bench.control.history import ERROR, OK, Answer
from bench.control.models import PIPELINES
from logged_ports import wait_ports

LIMIT = 120.0
_CLIENT = Path(__file__).with_name("xds_grpc_client.py")
_CALLS = Path(__file__).with_name("xds_grpc_calls.py")


@contextmanager
def xds_controller(fleet: SupervisedFleet, directory: Path, port: int = 0) -> Iterator[int]:
    """A further controller of the fleet, which serves xDS: its port, which may be given."""
    store = f"sqlite:{fleet.file.parent / 'fleet.db'}"
    command = [
        *(sys.executable, "-m", "isochrone", "control", "--store", store, "--fleet", "proof"),
        *("--name", "control-9", "--listen", "127.0.0.1:0", "--xds-listen", f"127.0.0.1:{port}", "--log-json"),
    ]
    path = directory / "xds.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield wait_ports(path, "xds", lives=lambda: process.poll() is None)["xds"]
    finally:
        process.terminate()
        ended = process.wait(30)
    assert ended == 0, path.read_text()[-3000:]
    assert "Traceback" not in path.read_text(), path.read_text()[-5000:]


def grpc_bootstrap(port: int) -> dict[str, Any]:
    """As docs/xds.md has it."""
    server = {
        "server_uri": f"127.0.0.1:{port}",
        "channel_creds": [{"type": "insecure"}],
        "server_features": ["xds_v3", "trusted_xds_server"],
    }
    return {"xds_servers": [server], "node": {"id": "test-client", "cluster": "tests"}}


def _environment(bootstrap: dict[str, Any]) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(bootstrap),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def grpc_calls(port: int, *calls: tuple[str, str, str, str, dict[str, str]]) -> list[str]:
    """What came of some calls: see ``xds_grpc_calls``."""
    ended = subprocess.run(
        [sys.executable, str(_CALLS)],
        input=json.dumps(calls),
        env=_environment(grpc_bootstrap(port)),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout)
    return found


class GrpcClient:
    """``with GrpcClient(port, directory, models) as client``: calls them until the block ends."""

    def __init__(self, port: int, directory: Path, models: Sequence[str], **bootstrap: Any) -> None:
        self._bootstrap = {**grpc_bootstrap(port), **bootstrap}
        self._path = directory / "grpcio.history"
        self._log = directory / "grpcio.log"
        self._models = models

    def __enter__(self) -> GrpcClient:
        environment = _environment(self._bootstrap)
        command = [sys.executable, str(_CLIENT), *self._models]
        with self._path.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=log, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            ended = self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
        assert ended == 0, self._log.read_text()[-3000:]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def history(self) -> list[Answer]:
        lines = self._path.read_bytes().splitlines(keepends=True)
        return [msgspec.json.decode(line, type=Answer) for line in lines if line.endswith(b"\n")]

    def wait_answers(self, count: int = 10, outcome: str = OK) -> None:
        """Until so many requests that were sent from now on have ended like that."""
        since, ends = time.monotonic_ns(), time.monotonic() + LIMIT
        while sum(answer.started_ns >= since and answer.outcome == outcome for answer in self.history) < count:
            assert time.monotonic() < ends, (self.history[-3:], self._log.read_text()[-2000:])
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            time.sleep(0.05)

    @property
    def failed(self) -> list[Answer]:
        return [answer for answer in self.history if answer.outcome == ERROR]


def assert_explained(history: Sequence[Answer], commits: Sequence[Commit]) -> None:
    """Every answer comes from one committed epoch."""
    violations = check(history, commits, PIPELINES)
    assert not violations, "\n".join(map(str, violations[:10]))


def envoy_bootstrap(port: int, listen: str, admin_port: int) -> dict[str, Any]:
    """As docs/xds.md has it."""
    ads = {"resource_api_version": "V3", "ads": {}}
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    http = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "node": {"id": "test-envoy", "cluster": "tests", "metadata": {"isochrone_listen": listen}},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "isochrone-control"}}],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {
            "clusters": [
                {
                    "name": "isochrone-control",
                    "load_assignment": {
                        "cluster_name": "isochrone-control",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
                    },
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": http,
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                }
            ]
        },
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin_port}}},
    }
