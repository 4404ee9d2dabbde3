"""What a gateway reads of requests beside routing, bodies of the control API, answers of servers, addresses."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from tritonclient.grpc import service_pb2

from fuzz.target import Target, outcome
from isochrone.client.address import parse_address
from isochrone.client.http.failures import http_failure
from isochrone.control.api import messages
from isochrone.control.api.operation import body_of
from isochrone.control.evaluation.outputs import read_grpc, read_http
from isochrone.control.scaling.reading.counter_pages import gateway_counts, model_configuration, worker_statistics
from isochrone.gateway.control_calls.load_requests import checked_grpc, checked_http
from isochrone.gateway.control_calls.routes import all_or_error
from isochrone.gateway.flights.reading import id_of
from isochrone.gateway.front import request_ids
from isochrone.gateway.resilience import fingerprints
from isochrone.multiprocess.metrics.page_sum import parse, render
from isochrone.store.etcd.address import read_address, split_password
from isochrone.wire.receiver import Response

_NESTED = b'{"a":' + b"[" * 1500 + b"]" * 1500 + b',"id":"r"}'


def recorded_requests(data: bytes) -> None:
    """Ids and fingerprints, which are taken of any request; and load requests, from which files are kept out."""
    for identity in (id_of(data), request_ids.of_http(data, -1), request_ids.of_grpc(data, 0)):
        identity.encode()
    for length in (-1, len(data) // 2):
        assert fingerprints.of_http(b"/p", data, length) == fingerprints.of_http(b"/p", data, length)
    fingerprints.of_grpc(b"/p", data, 0)
    ok, body = outcome(checked_http, data)
    if ok and body:
        parameters = msgspec.json.decode(body)
        parameters = parameters.get("parameters") if isinstance(parameters, dict) else None
        assert not isinstance(parameters, dict) or not any(name.startswith("file:") for name in parameters)
    ok, message = outcome(checked_grpc, b"\0" + len(data).to_bytes(4, "big") + data)
    if ok:
        parsed = service_pb2.RepositoryModelLoadRequest.FromString(message[5:])
        assert not any(name.startswith("file:") for name in parsed.parameters)


_BODIES = (
    *(messages.FleetRequest, messages.RolloutRequest, messages.AbortRequest, messages.ScaleRequest),
    *(messages.WhatIfRequest, messages.RestoreRequest),
)


def control_bodies(data: bytes) -> None:
    for kind in _BODIES:
        outcome(_body, data, kind)


def _body(data: bytes, kind: type[Any]) -> object:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": data, "more_body": False}

    reading = body_of(Request({"type": "http", "headers": []}, receive), kind)
    try:
        # Everything is there: it ends without waiting.
        reading.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


def answers(data: bytes) -> None:
    """Pages and answers of workers, gateways and servers of other makers."""
    for length in (-1, len(data) // 2):
        ok, outputs = outcome(read_http, data, length)
        assert not ok or all(isinstance(each, np.ndarray) for each in outputs.values())
    outcome(read_grpc, data)
    for status in (200, 503):
        answer = Response(status, ((b"content-type", b"application/json"),), data, ())
        ok, merged = outcome(all_or_error, [("a", answer), ("b", answer)], True)
        assert not ok or isinstance(merged[2], bytes)
    http_failure(503, {}, data, "a place").message.encode()
    for read in (model_configuration, _gateway_page, _worker_page):
        # The reader of pages turns these into a page that says nothing.
        with contextlib.suppress(ValueError, RecursionError):
            outcome(read, data)
    with contextlib.suppress(ValueError, RecursionError):
        render(parse(data.decode("utf-8", "replace")))


def _gateway_page(page: bytes) -> object:
    return gateway_counts(page, "i", {"10.0.0.1:8000": "w"})


def _worker_page(page: bytes) -> object:
    return worker_statistics(page, "i", {})


def addresses(data: bytes) -> None:
    text = data.decode("latin-1")
    ok, address = outcome(parse_address, text)
    if ok:
        assert parse_address(str(address)) == address
    ok, etcd = outcome(read_address, text)
    if ok:
        assert not etcd.password or f":{etcd.password}@" not in etcd.shown
        without, _ = split_password(text)
        # Brackets in a name, which RFC 3986 wants encoded, may leave nothing that is an address.
        ok, left = outcome(read_address, without)
        assert not ok or not left.password, "a URL without its password has one"


_INFERRED = {
    "model_name": "m",
    "outputs": [
        {"name": "y", "datatype": "FP32", "shape": [2], "data": [1.5, None]},
        {"name": "z", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}},
    ],
}
_INDEX = [{"name": "m", "version": "1", "state": "READY", "reason": "", "digest": "sha256:00"}]
_STATISTICS = {"model_stats": [{"name": "m", "version": "1", "inference_count": 3, "batch_stats": []}]}
_PAGE = b"""# HELP isochrone_gateway_requests_total r
# TYPE isochrone_gateway_requests_total counter
isochrone_gateway_requests_total{model="m",outcome="ok"} 3
isochrone_gateway_rejections_total{model="a\\"b",reason="worker"} 1
isochrone_gateway_waiting{model="m"} 0
"""
_LOAD = service_pb2.RepositoryModelLoadRequest(model_name="m")
_LOAD.parameters["config"].string_param = "{}"

TARGETS = (
    Target(
        "recorded_requests",
        (
            "isochrone.gateway.flights.reading",
            "isochrone.gateway.front.request_ids",
            "isochrone.gateway.resilience.fingerprints",
            "isochrone.gateway.control_calls.load_requests",
        ),
        "ids that can be shown, the same fingerprint each time, no file in a load request that passes; no exception",
        recorded_requests,
        (
            b'{"id":"request-7","inputs":[]}',
            b'{"parameters":{"config":"{}","file:1/model.onnx":"AA=="}}',
            b"\x0a\x01m\x1a\x09request-7",
            bytes(_LOAD.SerializeToString()),
            _NESTED,
        ),
    ),
    Target(
        "control_bodies",
        ("isochrone.control.api.operation", "isochrone.control.api.messages"),
        "only our errors",
        control_bodies,
        (b'{"fleet":"name: f","directory":"/d"}', b'{"versions":{"m":"2"}}', b'{"workers":3}', _NESTED),
    ),
    Target(
        "peer_answers",
        (
            "isochrone.control.evaluation.outputs",
            "isochrone.control.scaling.reading.counter_pages",
            "isochrone.gateway.control_calls.routes",
            "isochrone.client.http.failures",
            "isochrone.multiprocess.metrics.page_sum",
        ),
        "only our errors, or those that readers of pages catch (ValueError, RecursionError)",
        answers,
        (
            json.dumps(_INFERRED).encode(),
            json.dumps(_INDEX).encode(),
            json.dumps(_STATISTICS).encode(),
            _PAGE,
            b'{"error":"no such model"}',
            _NESTED,
        ),
    ),
    Target(
        "addresses",
        ("isochrone.client.address", "isochrone.store.etcd.address"),
        "an address is read as it is shown; a password is taken out of a store's URL; only our errors",
        addresses,
        (
            b"grpcs://[::1]:8001",
            b"worker:8000",
            b"etcd:https://u:secret@a:2379,https://b?ca=/ca.crt",
            b"etcd:http://u:secret@a",
        ),
    ),
)
