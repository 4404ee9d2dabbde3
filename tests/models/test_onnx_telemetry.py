"""A server says nothing to onnxruntime's maker unless its user wants it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import os, sys
import {module}
assert "onnxruntime" not in sys.modules or "{module}".endswith("backend")
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""


@pytest.mark.parametrize("module", ["isochrone.models.onnx_file", "isochrone.worker.backends.onnx.backend"])
@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_before_onnxruntime_is_imported(module: str, given: str | None, expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    if given is not None:
        environment["ORT_DISABLE_TELEMETRY"] = given
    command = [sys.executable, "-c", _SCRIPT.format(module=module)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected
