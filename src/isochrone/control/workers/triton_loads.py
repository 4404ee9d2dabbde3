"""Loading on a real Triton, over gRPC.

What Triton 2.51 does with a load whose ``config`` names versions, measured (tests/peers/test_worker_control_triton.py):

- Every version named is loaded again, those that serve too, beside what serves; then all are exchanged at once. No
  request fails, but memory is needed for both. So nothing is asked for that is there already.
- A version that fails leaves everything as it was, and the answer says why.
- A version that is not in the repository is skipped without a word.
- Over HTTP, a load blocks the thread that took it until it is done, and every connection of that thread with it: with
  8 threads, an eighth of all connections and more stand still for as long as the load takes. Over gRPC none does.
- A ``config`` replaces config.pbtxt whole, and the one in use can be asked for only while a version is loaded. A load
  without it goes by the policy on disk, and fails if the newest version does.
- Unless it was started with ``--strict-readiness=false``, the whole server says that it is not ready while a version
  unloads, and from the first version that fails until that one loads well. Who goes by its readiness, as gateways do,
  would take it away from all its models: Tritons of a fleet need that flag.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.repository import CONFIG_FILE
from isochrone.protocol.control_json import model_config_json
from isochrone.wire.connect import connect_http2
from isochrone.wire.http2.grpc_client import unary

_LOAD = b"/inference.GRPCInferenceService/RepositoryModelLoad"


async def load(host: str, port: int, model: str, config: str | None) -> None:
    """Returns when it is ready; ``config`` is JSON that stands in for config.pbtxt. Limit its time from outside."""
    request = service_pb2.RepositoryModelLoadRequest(model_name=model)
    if config is not None:
        request.parameters["config"].string_param = config
    connection = await connect_http2(host, port)
    try:
        await unary(connection, f"{host}:{port}".encode(), _LOAD, request.SerializeToString())
    finally:
        connection.close()


def config_in(directory: Path) -> dict[str, Any] | None:
    """The configuration in a model's directory, as a load's ``config`` takes it; None: there is none."""
    path = directory / CONFIG_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
    config, _ = parse_text(content, str(path))
    return dict(model_config_json(config))
