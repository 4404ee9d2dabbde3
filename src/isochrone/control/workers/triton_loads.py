"""Loads on a real Triton, over gRPC.

Triton 2.51 treats a load whose ``config`` names versions as follows (measured in
tests/peers/test_worker_control_triton.py):

- It reloads every named version, including those that serve, beside the serving ones, and then exchanges all at once.
  No request fails, but memory is needed for both. So a load that changes nothing is never sent.
- If a version fails, everything stays as it was, and the answer has the reason.
- It silently skips a version that is not in the repository.
- Over HTTP, a load blocks the thread that accepted it, and all connections of that thread: with 8 threads, at least an
  eighth of all connections stall for the duration of the load. Over gRPC none does.
- A ``config`` replaces config.pbtxt entirely, and the current one can be read only while a version is loaded. A load
  without ``config`` uses the policy on disk, and fails if the newest version does.
- Unless it was started with ``--strict-readiness=false``, the whole server reports that it is not ready while a version
  unloads, and from the first version that fails until that version loads. Gateways would then stop using it for all its
  models: Tritons of a fleet need that flag.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.protocol.control_json import model_config_json
from isochrone.wire.connect import connect_http2
from isochrone.wire.http2.grpc_client import unary

_LOAD = b"/inference.GRPCInferenceService/RepositoryModelLoad"


async def load(host: str, port: int, model: str, config: str | None) -> None:
    """Return when the model is ready. ``config``: JSON in place of config.pbtxt. The caller limits the time."""
    request = service_pb2.RepositoryModelLoadRequest(model_name=model)
    if config is not None:
        request.parameters["config"].string_param = config
    connection = await connect_http2(host, port)
    try:
        await unary(connection, f"{host}:{port}".encode(), _LOAD, request.SerializeToString())
    finally:
        connection.close()


def config_in(directory: Path) -> dict[str, Any] | None:
    """The configuration in a model's directory, for a load's ``config``; None: there is none."""
    path = directory / CONFIG_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
    config, _ = parse_text(content, str(path))
    return dict(model_config_json(config))
