"""Which control calls change a server, by the names that the audit log gives them. Pure.

Gateways and workers take the same calls, so that both record them alike. Values that callers send along are recorded as
far as they are settings: files and configurations of models are named, and not quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

if TYPE_CHECKING:
    from isochrone.wire.exchange import Buffer, Head

LOAD: Final = "model.load"
UNLOAD: Final = "model.unload"
TRACE: Final = "trace.set"
LOG: Final = "log.set"
_PATHS: Final = (
    (re.compile(r"/v2/repository(?:/[^/]+)?/models/([^/]+)/(load|unload)/?$"), "model."),
    (re.compile(r"/v2/models/([^/]+)/(?:versions/[^/]+/)?trace/(set)ting/?$"), "trace."),
    (re.compile(r"/v2/()trace/(set)ting/?$"), "trace."),
    (re.compile(r"/v2/systemsharedmemory(?:/region/([^/]+))?/(register|unregister)/?$"), "shared_memory."),
    (re.compile(r"/v2/cudasharedmemory(?:/region/([^/]+))?/(register|unregister)/?$"), "cuda_shared_memory."),
)
_LOGGING: Final = re.compile(r"/v2/logging/?$")
_SERVICE: Final = b"/inference.GRPCInferenceService/"
_METHODS: Final = {
    b"RepositoryModelLoad": LOAD,
    b"RepositoryModelUnload": UNLOAD,
    b"TraceSetting": TRACE,
    b"LogSettings": LOG,
    b"SystemSharedMemoryRegister": "shared_memory.register",
    b"SystemSharedMemoryUnregister": "shared_memory.unregister",
    b"CudaSharedMemoryRegister": "cuda_shared_memory.register",
    b"CudaSharedMemoryUnregister": "cuda_shared_memory.unregister",
}
#: Members of a body that are recorded as they are.
_PLAIN: Final = ("key", "offset", "byte_size", "device_id")
#: Settings of one call that are recorded.
_MOST_SETTINGS: Final = 32


class Change(NamedTuple):
    """``subject``: the model or region; "": the server, or all regions."""

    action: str
    subject: str


def rest_change(method: bytes, target: bytes) -> Change | None:
    """None: the call changes nothing."""
    if method != b"POST":
        return None
    path = target.partition(b"?")[0].decode("latin-1")
    for pattern, group in _PATHS:
        if match := pattern.match(path):
            return Change(group + match[2], unquote(match[1] or ""))
    return Change(LOG, "") if _LOGGING.match(path) else None


def change_named_by(head: Head) -> str:
    """The action that a head asks for, as far as it says; "": none, or its message decides whether it only reads."""
    if not (head.get(b"content-type") or b"").startswith(b"application/grpc"):
        change = rest_change(head.method, head.target)
        return change.action if change is not None else ""
    action = grpc_action(head.target)
    return "" if action in (TRACE, LOG) else action


def rest_details(action: str, body: Buffer) -> dict[str, Any]:
    """What is recorded of a body; one that cannot be read is refused elsewhere."""
    try:
        value = msgspec.json.decode(body) if len(body) else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return of_body(action, value) if isinstance(value, dict) else {}


def of_body(action: str, body: Mapping[str, Any]) -> dict[str, Any]:
    if action in (TRACE, LOG):
        return {"settings": {name: str(value)[:200] for name, value in [*body.items()][:_MOST_SETTINGS]}}
    if action in (LOAD, UNLOAD):
        parameters = body.get("parameters")
        return {"parameters": sorted(parameters)[:_MOST_SETTINGS]} if isinstance(parameters, dict) else {}
    return {name: body[name] for name in _PLAIN if isinstance(body.get(name), int | str)}


def grpc_action(path: bytes) -> str:
    """The action of a method; "": it changes nothing."""
    return _METHODS.get(path.removeprefix(_SERVICE), "") if path.startswith(_SERVICE) else ""


def grpc_change(action: str, message: Any) -> tuple[Change, dict[str, Any]] | None:
    """A message of such a method; None: it only reads, since it has no settings."""
    if action in (TRACE, LOG):
        if not message.settings:
            return None
        settings = {name: _shown(value) for name, value in [*message.settings.items()][:_MOST_SETTINGS]}
        return Change(action, message.model_name if action == TRACE else ""), {"settings": settings}
    if action in (LOAD, UNLOAD):
        parameters = {"parameters": sorted(message.parameters)[:_MOST_SETTINGS]} if message.parameters else {}
        return Change(action, message.model_name), parameters
    return Change(action, message.name), {name: getattr(message, name) for name in _PLAIN if hasattr(message, name)}


def _shown(value: Any) -> str:
    return " ".join(str(value).split())[:200]
