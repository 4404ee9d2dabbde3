"""The scaler for KEDA over real gRPC, in front of a real fleet: its load, its sleep, its silence, wrong triggers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from real_fleets import small_fleet, until

from bench.control.fleet_run import SupervisedFleet
from bench.control.running_fleet import WORKER
from fleet_load import FleetLoad
from isochrone.control.scaling.keda import messages
from logged_ports import wait_ports

pytestmark = pytest.mark.long


@contextlib.contextmanager
def scaler(fleet: SupervisedFleet, directory: Path) -> Iterator[grpc.Channel]:
    """A further controller of the fleet, which serves the scaler."""
    store = f"sqlite:{fleet.file.parent / 'fleet.db'}"
    command = [
        *(sys.executable, "-m", "isochrone", "control", "--store", store, "--fleet", "proof"),
        *("--name", "control-9", "--listen", "127.0.0.1:0", "--scaler-listen", "127.0.0.1:0", "--log-json"),
    ]
    path = directory / "scaler.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        port = wait_ports(path, "scaler", lives=lambda: process.poll() is None)["scaler"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            yield channel
    finally:
        process.terminate()
        assert process.wait(30) == 0


def call(channel: grpc.Channel, method: str, request: Any, response: Any) -> Any:
    made = channel.unary_unary(f"/{messages.SERVICE}/{method}", type(request).SerializeToString, response.FromString)
    return made(request, timeout=30)


def trigger(**metadata: str) -> Any:
    return messages.ScaledObjectRef(name="scaled", namespace="space", scalerMetadata=metadata)


def requests(channel: grpc.Channel, **metadata: str) -> float:
    request = messages.GetMetricsRequest(scaledObjectRef=trigger(**metadata), metricName="requests_in_pool")
    (value,) = call(channel, "GetMetrics", request, messages.GetMetricsResponse).metricValues
    return float(value.metricValueFloat)


def is_active(channel: grpc.Channel, **metadata: str) -> bool:
    return bool(call(channel, "IsActive", trigger(**metadata), messages.IsActiveResponse).result)


def test_keda_sees_the_load_of_a_pool(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet, scaler(fleet, tmp_path) as channel:
        spec = call(channel, "GetMetricSpec", trigger(pool="cpu"), messages.GetMetricSpecResponse)
        (metric,) = spec.metricSpecs
        assert (metric.metricName, metric.targetSize, metric.targetSizeFloat) == ("requests_in_pool", 4, 4.0)
        assert requests(channel, pool="cpu") == 0

        stream = channel.unary_stream(
            f"/{messages.SERVICE}/StreamIsActive",
            messages.ScaledObjectRef.SerializeToString,
            messages.IsActiveResponse.FromString,
        )(trigger(pool="cpu", idleSeconds="2"), timeout=100)
        while next(stream).result:
            pass  # the requests of the fleet's own start
        with FleetLoad(fleet.gateways) as load:
            assert next(stream).result, "pushed, without a poll"
            until(lambda: requests(channel, pool="cpu") > 0, "requests in the pool")
            assert is_active(channel, pool="cpu")
            load.wait_answers()
        assert not next(stream).result
        stream.cancel()

        pids = [pid for part in fleet.of(WORKER) if (pid := fleet.pid(part.name)) is not None]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:

            def silent() -> bool:
                try:
                    requests(channel, pool="cpu")
                    return False
                except grpc.RpcError as error:
                    said = (error.code(), error.details())
                    return said == (grpc.StatusCode.UNAVAILABLE, "no worker of pool cpu answers")

            until(silent, "the scaler to say that nobody answers")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        with pytest.raises(grpc.RpcError) as refused:
            requests(channel, pool="gpu")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "metadata.pool: expected" in refused.value.details()
