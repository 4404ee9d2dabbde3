"""xDS and KEDA's scaler of a controller, and the picker, which ask nobody who they are: callers can read what these
serve, change nothing, and end no call but their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from attacked_controller import AttackedController, attacked_controller
from guarded_servers import ask

from hostile_client import talk
from isochrone.control.scaling.keda import messages as keda
from isochrone.control.xds import messages as xds
from isochrone.store.opening import open_store
from sample_models import write_models
from watching import wait_for

ADS = f"/{xds.ADS}/StreamAggregatedResources"
FLEET = """
name: plant
repository: models
pools: {cpu: {workers: 1, max: 2}}
models: {identity_fp32: {version: 1}}
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedController]:
    folder = tmp_path_factory.mktemp("listeners")
    write_models(folder / "models", "identity_fp32")
    flags = ("--xds-listen", "127.0.0.1:0", "--scaler-listen", "127.0.0.1:0")
    with attacked_controller(folder, *flags, services=("control", "xds", "scaler")) as started:
        body = {"text": FLEET, "directory": str(folder)}
        status, _, answer = ask(started.ports["control"], "PUT", "/v1/fleet", {}, body)
        assert status == 200, answer
        yield started


#: Records that the leader writes by itself meanwhile, and those of xDS servers, which count their clients.
WRITTEN_MEANWHILE = ("/xds-servers/", "/events/", "/rollout", "/converged")


def listed(controller: AttackedController) -> dict[str, bytes]:
    """What the fleet's store has."""

    async def listing() -> dict[str, bytes]:
        store = open_store(f"sqlite:{controller.log.parent / 'fleet.db'}")
        try:
            return {key: entry.value for key, entry in (await store.list("")).entries.items()}
        finally:
            await store.close()

    return asyncio.run(listing())


def records(controller: AttackedController) -> dict[str, bytes]:
    """The fleet, its epoch, the sizes of its pools, drains, workers and gateways."""
    found = listed(controller)
    return {key: value for key, value in found.items() if not any(each in key for each in WRITTEN_MEANWHILE)}


def code(call: Any, message: bytes) -> tuple[grpc.StatusCode, str]:
    try:
        call(message, timeout=60)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def trigger(**metadata: str) -> bytes:
    made: bytes = keda.ScaledObjectRef(name="x", namespace="y", scalerMetadata=metadata).SerializeToString()
    return made


GARBAGE = (b"\xff\xff nonsense", b"\x0a\xff\xff\xff\xff\x0f", b"\x1a\x02\x0a\x05", b"\x1b" * 10_000, b"x" * 999_999)
METADATA = (
    {},
    {"pool": "gpu"},
    {"pool": "../cpu"},
    {"pool": "x" * 1_000_000},
    {"pool": "cpu", "requestsPerWorker": "nan"},
    {"pool": "cpu", "requestsPerWorker": "-1"},
    {"pool": "cpu", "requestsPerWorker": "9" * 1_000_000},
    {"pool": "cpu", "idleSeconds": "inf"},
    {"pool": "cpu", "idleSeconds": "x" * 1_000_000},
    {"pool": "cpu", "x" * 1_000_000: ""},
    {"pool": "cpu", "workers": "1000"},
)


def test_the_scaler(controller: AttackedController, tried: Counter[str]) -> None:
    before = records(controller)
    with grpc.insecure_channel(f"127.0.0.1:{controller.ports['scaler']}") as channel:
        spec = channel.unary_unary(f"/{keda.SERVICE}/GetMetricSpec")
        stream = channel.unary_stream(f"/{keda.SERVICE}/StreamIsActive")
        for method in ("IsActive", "GetMetricSpec", "GetMetrics"):
            call = channel.unary_unary(f"/{keda.SERVICE}/{method}")
            for message in (*GARBAGE, *(trigger(**each) for each in METADATA)):
                if method == "GetMetrics" and message not in GARBAGE:
                    message = keda.GetMetricsRequest(
                        scaledObjectRef=keda.ScaledObjectRef.FromString(message)
                    ).SerializeToString()
                status, details = code(call, message)
                assert status is grpc.StatusCode.INVALID_ARGUMENT, (method, message[:50], status, details[:200])
                assert len(details) < 1000
                tried["KEDA's scaler: bytes and triggers that make no sense"] += 1
            assert code(spec, trigger(pool="cpu"))[0] is grpc.StatusCode.OK
        for message in GARBAGE:
            status, _ = code(lambda content, timeout: next(stream(content, timeout=timeout)), message)
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            tried["KEDA's scaler: bytes and triggers that make no sense"] += 1
        for path in (
            "/externalscaler.ExternalScaler/Scale",
            "/etcdserverpb.KV/Put",
            "/v1/fleet",
            "/grpc.reflection.v1",
        ):
            assert code(channel.unary_unary(path), b"")[0] is grpc.StatusCode.UNIMPLEMENTED
            tried["KEDA's scaler: methods that it does not have"] += 1
    # A message of 8 MiB, over grpc's limit, and many calls at once: more than a server takes.
    with grpc.insecure_channel(f"127.0.0.1:{controller.ports['scaler']}") as channel:
        call = channel.unary_unary(f"/{keda.SERVICE}/IsActive")
        assert code(call, b"x" * (8 << 20))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        tried["KEDA's scaler: messages beyond its limit"] += 1
        stream = channel.unary_stream(f"/{keda.SERVICE}/StreamIsActive")
        streams = [stream(trigger(pool="cpu"), timeout=60) for _ in range(1500)]
        # The streams beyond the limit end; the others stay.
        wait_for(lambda: sum(not each.is_active() for each in streams) >= 1500 - 1024)
        assert ask(controller.ports["control"], "GET", "/v1/status")[0] == 200
        refused = [each for each in streams if not each.is_active()]
        assert len(refused) == 1500 - 1024
        assert {each.code() for each in refused} <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED}
        tried["KEDA's scaler: streams beyond its limit"] += len(refused)
        for each in streams:
            each.cancel()
    with grpc.insecure_channel(f"127.0.0.1:{controller.ports['scaler']}") as channel:
        call = channel.unary_unary(f"/{keda.SERVICE}/GetMetricSpec")
        wait_for(lambda: code(call, trigger(pool="cpu"))[0] is grpc.StatusCode.OK)
    assert records(controller) == before, "a caller of the scaler changed the store"


def test_xds(controller: AttackedController, tried: Counter[str]) -> None:
    """What its clients may do to a fleet is in ``tests/system/test_xds_hostile.py``; here: nothing but events."""
    before = records(controller)
    port = controller.ports["xds"]
    cds = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

    def ended(*messages: bytes) -> grpc.StatusCode:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(ADS)(iter(messages), timeout=60)
            try:
                for _ in call:
                    pass
            except grpc.RpcError:
                pass
            found: grpc.StatusCode = call.code()
            return found

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        # An honest client, with a stream that stays open.
        honest = channel.stream_stream(ADS)
        asked = threading.Event()

        def requests() -> Iterator[bytes]:
            yield xds.DiscoveryRequest(type_url=cds, node={"id": "honest"}).SerializeToString()
            asked.wait(60)
            yield xds.DiscoveryRequest(
                type_url=cds.replace("cluster.v3.Cluster", "listener.v3.Listener")
            ).SerializeToString()
            asked.wait(60)

        answers = honest(requests(), timeout=120)
        for message in (each for each in GARBAGE if each[0] != 0x1A):  # which is the name of a resource here
            assert ended(message) is grpc.StatusCode.INVALID_ARGUMENT
            tried["xDS: bytes that are no message"] += 1
        names = [f"n{number}" for number in range(10_001)]
        listen = {"isochrone_listen": "/etc/passwd"}
        for each in (
            xds.DiscoveryRequest(type_url=cds, resource_names=names),
            xds.DiscoveryRequest(type_url=cds, node={"id": "x" * 1_000_000, "metadata": listen}),
        ):
            assert ended(each.SerializeToString()) is grpc.StatusCode.INVALID_ARGUMENT
            tried["xDS: names and listeners that are refused"] += 1
        assert ended(b"x" * (8 << 20)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        tried["xDS: messages beyond its limit"] += 1
        for path in ("/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources", "/v1/fleet"):
            assert code(channel.unary_unary(path), b"")[0] is grpc.StatusCode.UNIMPLEMENTED
            tried["xDS: methods that it does not have"] += 1
        assert answers.is_active(), "the honest client's stream ended with another's"
        asked.set()
        answers.cancel()
    assert ask(controller.ports["control"], "GET", "/v1/status")[0] == 200
    assert records(controller) == before, "a caller of xDS changed the store"
    events = [value for key, value in listed(controller).items() if "/events/" in key]
    of_clients = [value for value in events if json.loads(value)["what"].startswith("xDS")]
    assert {json.loads(value)["what"] for value in of_clients} == {"xDS client refused"}
    assert all(len(value) < 2000 for value in of_clients)


def test_neither_listener_is_the_control_api(controller: AttackedController, tried: Counter[str]) -> None:
    for service in ("xds", "scaler"):
        for data in (b"PUT /v1/fleet HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 1000, b"\x16\x03\x01\x02\x00" + b"\1" * 500):
            answer = talk(controller.ports[service], data, half_close=True)
            assert b"HTTP/1.1 2" not in answer
            tried["xDS and KEDA's scaler: other protocols"] += 1
