"""APIs that require a header: Triton's ``--http-restricted-api`` and ``--grpc-restricted-protocol``.

Checked once per distinct message head, before a route is chosen. The header protects an API from mistakes and
strangers, not from an observer of the traffic.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from isochrone.errors import Restricted

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

APIS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)

#: Prefix of the required gRPC metadata; HTTP headers have none.
_GRPC_PREFIX: Final = "triton-grpc-protocol-"

_SERVER_PATH = re.compile(
    r"/v2/(?:(health|repository|systemsharedmemory|cudasharedmemory|logging|trace)(?:/|$)|(models/stats)/?$)"
)
_SERVER_APIS: Final = {
    "health": "health",
    "repository": "model-repository",
    "systemsharedmemory": "shared-memory",
    "cudasharedmemory": "shared-memory",
    "logging": "logging",
    "trace": "trace",
    "models/stats": "statistics",
}
_OPENAI_PATH = re.compile(r"/v1/(?:(?P<models>models)(?:/|$)|(?:chat/)?completions/*$)")
_MODEL_PATH = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?(?:/(?P<verb>[a-z_]+))?(?:/.*)?$")
_MODEL_APIS: Final = {
    "infer": "inference",
    "generate": "inference",
    "generate_stream": "inference",
    "ready": "health",
    "config": "model-config",
    "stats": "statistics",
    "trace": "trace",
}
_GRPC_APIS: Final = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "Check": "health",
    "List": "health",
    "Watch": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}


class RequiredHeader(NamedTuple):
    name: str
    value: str


#: API → the header it requires; an API without an entry is open.
Requirements = Mapping[str, RequiredHeader]


def rest_api(path: str) -> str | None:
    """The API of a path (without its query); None: no API."""
    if server := _SERVER_PATH.match(path):
        return _SERVER_APIS[server[1] or server[2]]
    if model := _MODEL_PATH.match(path):
        return _MODEL_APIS.get(model["verb"], "metadata")
    if openai := _OPENAI_PATH.match(path):
        return "metadata" if openai["models"] else "inference"
    return "metadata" if path.rstrip("/") == "/v2" else None


def grpc_api(path: str) -> str | None:
    """The API of a gRPC method; None: no API (reflection)."""
    return _GRPC_APIS.get(path.rpartition("/")[2])


def check_rest(requirements: Requirements, head: Head) -> None:
    """Raise ``Restricted`` if the required header is missing or wrong."""
    api = rest_api(head.target.partition(b"?")[0].decode("latin-1"))
    required = requirements.get(api or "")
    if required is not None and not _is_met(required.name, required.value, head):
        raise Restricted(f"This API is restricted, expecting header '{required.name}'")


def check_grpc(requirements: Requirements, head: Head) -> None:
    required = requirements.get(grpc_api(head.target.decode("latin-1")) or "")
    if required is None:
        return
    name = _GRPC_PREFIX + required.name
    if not _is_met(name, required.value, head):
        raise Restricted(f"This protocol is restricted, expecting header '{name}'")


def _is_met(name: str, value: str, head: Head) -> bool:
    given = head.get(name.lower().encode("latin-1"))
    return given is not None and hmac.compare_digest(given, value.encode())
