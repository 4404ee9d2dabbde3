"""Starts MLServer with one identity runtime; it speaks the Open Inference Protocol itself, HTTP and gRPC."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from bench.ports import free_ports
from bench.worker.payloads import http_infer_json
from bench.worker.peers.process import (
    HOST,
    SERVERS,
    Peer,
    answers,
    environment_python,
    installed_version,
    running,
    scratch,
)


@contextmanager
def start() -> Iterator[Peer]:
    """The server while the block runs."""
    python = environment_python("mlserver")
    http_port, grpc_port, metrics_port = free_ports(3)
    url = f"http://{HOST}:{http_port}"
    with scratch("mlserver") as directory:
        model = directory / "models" / "identity"
        model.mkdir(parents=True)
        settings = {
            "host": HOST,
            "http_port": http_port,
            "grpc_port": grpc_port,
            "metrics_port": metrics_port,
            # Inside the server process: the default pool would add a hop between processes per request.
            "parallel_workers": 0,
            "debug": False,
            "use_structured_logging": False,
        }
        (model.parent / "settings.json").write_text(json.dumps(settings))
        (model / "model-settings.json").write_text(
            json.dumps({"name": "identity", "implementation": "mlserver_identity.Identity"})
        )
        log = directory / "mlserver.log"
        with running(
            "mlserver",
            [python.parent / "mlserver", "start", model.parent],
            lambda: answers(f"{url}/v2/models/identity/ready"),
            log=log,
            environment={"PYTHONPATH": str(SERVERS), "PYTHONDONTWRITEBYTECODE": "1"},
        ) as pid:
            yield Peer(
                name="mlserver",
                version=installed_version(python, "mlserver"),
                pid=pid,
                log=log,
                models=("identity",),
                http_url=url,
                grpc_address=f"{HOST}:{grpc_port}",
                identity=http_infer_json("identity", [64], [1.0] * 64),
            )
