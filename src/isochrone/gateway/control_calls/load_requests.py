"""Load requests that pass through a gateway without a control plane: no files in them, unless the gateway allows it.

The servers behind it may be real Tritons, which take files, and so code, from everybody. What was checked is what is
sent: the request is written again from what was read, so that no server can read something else in the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from tritonclient.grpc import service_pb2

from isochrone.errors import MalformedRequest, PermissionDenied
from isochrone.protocol.grpc.calls import frame_message, only_message, parse
from isochrone.wire.exchange import Buffer

_FILE = "file:"


def checked_http(body: Buffer) -> bytes:
    """The body of a REST load, without files."""
    if not len(body):
        return b""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"failed to parse the request JSON: {error}") from None
    parameters = request.get("parameters") if isinstance(request, dict) else None
    _refuse_files(parameters if isinstance(parameters, dict) else ())
    return msgspec.json.encode(request)


def checked_grpc(body: Buffer) -> bytes:
    """The framed message of a gRPC load, decompressed before; without files."""
    message = parse(service_pb2.RepositoryModelLoadRequest, only_message(body))
    _refuse_files(message.parameters)
    return frame_message(message.SerializeToString())


def _refuse_files(names: Iterable[str]) -> None:
    if any(name.startswith(_FILE) for name in names):
        raise PermissionDenied(
            "a load request may not bring files through this gateway, since they may hold code; "
            "start the gateway with --allow-file-overrides to allow it"
        )
