"""The processes of models import only what they need: a worker waits for their start while it loads a model."""

from __future__ import annotations

import subprocess
import sys

CHILDREN = (
    "isochrone.worker.backends.isolation.child_main",
    "isochrone.worker.backends.python.triton.completion_child",
    "isochrone.worker.backends.python.triton.isolation.child_main",
)
#: The libraries of the worker's own work: logs, requests of gRPC, metrics, settings.
NEVER = {"structlog", "rich", "grpc", "tritonclient", "prometheus_client", "pydantic", "uvloop", "typer"}


def test_a_models_process_imports_only_what_it_needs() -> None:
    code = f"import sys, {', '.join(CHILDREN)}\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    imported = set(ended.stdout.split())
    assert {*CHILDREN, "numpy"} <= imported
    assert not NEVER & imported
