"""Every path and method that is served has a permission: what is forgotten would be closed to everybody."""

from __future__ import annotations

import pytest

from isochrone.gateway.front import application as gateway_front
from isochrone.protocol.access.needs import NOBODY, Need, needed_by, needed_by_page
from isochrone.protocol.grpc.control import METHODS
from isochrone.protocol.grpc.router import STREAMING
from isochrone.secure.access.permissions import PERMISSIONS
from isochrone.wire.exchange import Head

GRPC = ((b"content-type", b"application/grpc"),)
SERVICE = b"/inference.GRPCInferenceService/"

REST = {
    "/v2": Need("metadata"),
    "/v2/health/live": Need("health"),
    "/v2/health/ready": Need("health"),
    "/v2/models/m": Need("metadata", "m"),
    "/v2/models/m/versions/1": Need("metadata", "m"),
    "/v2/models/m/ready": Need("health", "m"),
    "/v2/models/m/versions/1/ready": Need("health", "m"),
    "/v2/models/m/config": Need("model-config", "m"),
    "/v2/models/m/stats": Need("statistics", "m"),
    "/v2/models/stats": Need("statistics"),
    "/v2/models/stats/infer": Need("inference", "stats"),
    "/v2/models/m/infer": Need("inference", "m"),
    "/v2/models/m/versions/2/infer": Need("inference", "m"),
    "/v2/models/m/generate": Need("inference", "m"),
    "/v2/models/m/generate_stream": Need("inference", "m"),
    "/v2/models/m/trace/setting": Need("trace", "m"),
    "/v2/models/a%20b/infer?x=1": Need("inference", "a b"),
    "/v2/repository/index": Need("metadata"),
    "/v2/repository/models/m/load": Need("model-repository", "m"),
    "/v2/repository/models/m/unload": Need("model-repository", "m"),
    "/v2/systemsharedmemory/status": Need("shared-memory"),
    "/v2/systemsharedmemory/region/r/register": Need("shared-memory"),
    "/v2/cudasharedmemory/region/r/unregister": Need("shared-memory"),
    "/v2/logging": Need("logging"),
    "/v2/trace/setting": Need("trace"),
    "/v1/models": Need("metadata"),
    "/v1/models/m": Need("metadata", "m"),
    "/v1/chat/completions": Need("inference"),
    "/v1/completions": Need("inference"),
}


@pytest.mark.parametrize("path", REST)
def test_paths(path: str) -> None:
    for target in (path, *((f"{path}/",) if "?" not in path else ())):
        assert needed_by(Head(b"POST", target.encode(), ())) == REST[path], target


@pytest.mark.parametrize("path", ["/", "/v3", "/v2/unknown", "/metrics", "/v2/models", "//v2/models/m/infer", "/V2"])
def test_what_no_permission_covers(path: str) -> None:
    assert needed_by(Head(b"POST", path.encode(), ())).permission == NOBODY
    assert NOBODY not in PERMISSIONS


def test_every_method_of_worker_and_gateway() -> None:
    served = {*METHODS, *STREAMING, SERVICE + b"ModelInfer", SERVICE + b"ModelStreamInfer"}
    served |= gateway_front._TO_ONE | gateway_front._TO_EVERYBODY
    for path in served:
        assert needed_by(Head(b"POST", path, GRPC)).permission in PERMISSIONS, path
    assert needed_by(Head(b"POST", SERVICE + b"Unknown", GRPC)).permission == NOBODY


def test_pages() -> None:
    assert needed_by_page(Head(b"GET", b"/metrics?name[]=x", ())) == Need("metrics")
    for path in (b"/samples/m", b"/flights", b"/", b"/metricsx", b"//metrics"):
        assert needed_by_page(Head(b"GET", path, ())) == Need("records"), path
