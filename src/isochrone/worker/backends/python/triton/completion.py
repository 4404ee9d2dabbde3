"""Completes a configuration by ``auto_complete_config`` of its model, in a process that ends afterwards.

As in Triton, nothing that the function makes is there when the model is initialized. A function that hangs or crashes
fails the load of its model and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from isochrone.errors import ModelFailed
from isochrone.models.configuration.json_config import parse_json
from isochrone.protocol.control_json import model_config_json
from isochrone.secure.sandbox.launch import launch_of
from isochrone.secure.sandbox.settings import SandboxSettings
from isochrone.worker.backends.processes.output import Output

FUNCTION = "auto_complete_config"
#: As long as Triton waits for the process of a model.
_SECONDS = 30.0
_LARGEST = 1 << 22


def completed_by_model(config: Any, directory: Path, sandbox: SandboxSettings | None = None) -> Any:
    """The configuration as the model of a version completes it; ``directory``: of the version. ``sandbox``: the process
    is confined."""
    failed = f"model '{config.name}': {FUNCTION}"
    confinement = None if sandbox is None else sandbox.confinement(config.name, str(directory.parent))
    reader, writer = os.pipe()
    output = None if confinement is None else Output()
    try:
        arguments = [str(writer), config.name, str(directory.absolute()), config.default_model_filename]
        try:
            with launch_of(f"{__package__}.completion_child", arguments, [writer], confinement) as launch:
                process = subprocess.Popen(
                    launch.command,
                    stdin=subprocess.PIPE,
                    stdout=None if output is None else output.writer,
                    stderr=None if output is None else output.writer,
                    env=launch.environment,
                    pass_fds=launch.descriptors,
                    process_group=0,
                    text=True,
                )
        finally:
            os.close(writer)
            if output is not None:
                output.begin()
        with process:
            try:
                process.communicate(json.dumps(model_config_json(config)), timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ModelFailed(f"{failed} has not returned after {_SECONDS:.0f} s") from None
            except BrokenPipeError:
                pass
        # The child's only writer has ended with it.
        answer = _read_all(reader)
    finally:
        os.close(reader)
        if output is not None:
            output.end()
    if not answer:
        raise ModelFailed(f"{failed} ended its process with code {process.returncode}")
    result = json.loads(answer)
    if "error" in result:
        raise ModelFailed(result["error"])
    return parse_json(json.dumps(result["config"]), f"{FUNCTION} of {directory / config.default_model_filename}")[0]


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, _LARGEST):
        parts.append(part)
    return b"".join(parts)
