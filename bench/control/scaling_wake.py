"""How long KEDA waits to learn of a request for a pool without workers: from its sending to the message of the stream.

A real gateway and a real controller share a SQLite store; a gRPC client stands for KEDA. Each request waits for a
worker until its deadline, then the pool falls asleep again. Says nothing about KEDA, Kubernetes or the start of a
worker.

    python -m bench.control.scaling_wake --tries 30
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from bench.ports import ports_in_a_row
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.scaling.keda import messages
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord
from isochrone.store.base import Put
from isochrone.store.opening import open_store

HOST = "127.0.0.1"
KEYS = Keys("wake")
FLEET = """
name: wake
pools: {cpu: {workers: 1}}
models: {m: {version: 1, traffic: {waiting_room: {max_requests: 8, max_wait_ms: 60000}}}}
"""


def write_fleet(url: str, directory: Path) -> None:
    fleet = FleetRecord(1, FLEET, parse_fleet(FLEET, "fleet.yaml", directory).model_dump(mode="json"))
    epoch = EpochRecord(1, {"m": Assignment("1", pools=("cpu",))})

    async def write() -> None:
        store = open_store(url)
        await store.transact((), (Put(KEYS.fleet, encode(fleet)), Put(KEYS.epoch, encode(epoch))))
        await store.close()

    asyncio.run(write())


@contextmanager
def running(directory: Path, name: str, *words: str) -> Iterator[None]:
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "isochrone", *words], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def wait_ready(port: int) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("the gateway is not ready after 60 s")


def measure(tries: int, gateway: int, scaler: int) -> list[float]:
    """Milliseconds of each try."""
    found = []
    body = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]})
    headers = {"x-request-timeout-ms": "200"}
    with grpc.insecure_channel(f"{HOST}:{scaler}") as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        stream = channel.unary_stream(
            f"/{messages.SERVICE}/StreamIsActive",
            messages.ScaledObjectRef.SerializeToString,
            messages.IsActiveResponse.FromString,
        )(messages.ScaledObjectRef(scalerMetadata={"pool": "cpu", "idleSeconds": "0.2"}))
        connection = http.client.HTTPConnection(HOST, gateway, timeout=30)
        for _ in range(tries):
            while next(stream).result:
                pass
            # At any moment between two readings.
            time.sleep(random.uniform(0.1, 0.7))
            sent = time.perf_counter()
            connection.request("POST", "/v2/models/m/infer", body, headers)
            if not next(stream).result:
                raise SystemExit("the pool fell asleep twice")
            found.append((time.perf_counter() - sent) * 1e3)
            answer = connection.getresponse()
            if answer.read() and answer.status != 504:
                raise SystemExit(f"the request did not wait: {answer.status}")
        stream.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=30)
    tries = parser.parse_args().tries
    first = ports_in_a_row(4)
    gateway, metrics, control, scaler = range(first, first + 4)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        url = f"sqlite:{directory / 'fleet.db'}"
        write_fleet(url, directory)
        member = ("--store", url, "--fleet", KEYS.fleet_name)
        listen = ("--listen", f"{HOST}:{control}", "--scaler-listen", f"{HOST}:{scaler}")
        with (
            running(directory, "control", "control", *member, *listen),
            running(
                *(directory, "gateway", "gateway", *member, "--name", "g"),
                *("--listen", f"{HOST}:{gateway}", "--metrics-port", str(metrics)),
            ),
        ):
            wait_ready(gateway)
            found = measure(tries, gateway, scaler)
    print(f"{tries} tries: median {statistics.median(found):.1f} ms, slowest {max(found):.1f} ms")


if __name__ == "__main__":
    main()
