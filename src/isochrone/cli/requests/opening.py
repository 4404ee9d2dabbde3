"""Open the target that a URL names: HTTP or gRPC, plain or over TLS. It is sent ISOCHRONE_API_TOKEN, as every server
that the user names is; the token of ``isochrone login`` goes to its controller alone."""

from __future__ import annotations

from urllib.parse import urlsplit

from isochrone.cli.requests.target import Certificates, RequestFailed, Target
from isochrone.errors import InvalidArgument
from isochrone.secure.api_token import token_fields

#: Seconds to wait for an answer when the request names no deadline.
_PATIENCE = 60.0


def open_target(url: str, timeout_ms: float | None, certificates: Certificates) -> Target:
    text = url if "://" in url else f"http://{url}"
    wrong = RequestFailed(f"--url: expected http://HOST:PORT, https://…, grpc://… or grpcs://…, given '{url}'")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not host or parts.path not in ("", "/"):
        raise wrong
    is_secure = parts.scheme.endswith("s")
    certificates.check(is_secure)
    # The server enforces the deadline; the margin lets its answer arrive.
    patience = _PATIENCE if timeout_ms is None else timeout_ms / 1000 + 5.0
    try:
        token = token_fields()
    except InvalidArgument as error:
        raise RequestFailed(str(error)) from None
    # Imported here: gRPC's library takes a third of a second to import, which an HTTP call does not need.
    if parts.scheme in ("grpc", "grpcs"):
        from isochrone.cli.requests.grpc_target import GrpcTarget

        return GrpcTarget(host, port or 8001, patience, certificates if is_secure else None, token)
    from isochrone.cli.requests.http_target import HttpTarget

    return HttpTarget(host, port or 8000, patience, certificates if is_secure else None, token)
