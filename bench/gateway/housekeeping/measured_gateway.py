"""A gateway of a fleet, as `isochrone gateway --store` starts it, whose loop is watched.

`python -m bench.gateway.housekeeping.measured_gateway STORE BLAME` prints its port when it is ready. Each line on its
input ends a stretch and names the next one; the figures of the stretch that ended go to its output as JSON. It stops at
the end of its input.
"""

import asyncio
import json
import os
import sys

import uvloop

from bench.gateway.housekeeping.loop_watch import LoopWatch
from isochrone.build_info import IS_COMPILED
from isochrone.cli.processes.gateway_membership import GatewayMembership
from isochrone.gateway.caller_requests import CallerRequest
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.server.server import GatewayServer
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.observe import logs


async def serve(store: str, blame: float) -> None:
    logs.configure(json=True)
    try:
        # Another process's work must not look like the gateway's: after a pause there is a backlog.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        pass
    watch = LoopWatch(blame)
    server = GatewayServer(GatewaySettings(host="127.0.0.1", port=0, metrics_port=0))
    server.make_link = GatewayMembership(store, "bench", "measured", "127.0.0.1", 5.0).link
    _count_requests(server.gateway, watch)
    await server.start()
    try:
        _say({"ready": server.ports})
        async for name in _lines():
            _say(watch.end().document())
            watch.begin(name)
    finally:
        await server.stop()


def _count_requests(gateway: Gateway, watch: LoopWatch) -> None:
    if IS_COMPILED:
        return  # its methods cannot be replaced: bursts of requests are not told apart
    arrive = gateway.arrive

    def counting(request: CallerRequest) -> None:
        watch.requests += 1
        arrive(request)

    gateway.arrive = counting  # type: ignore[method-assign]


async def _lines():  # type: ignore[no-untyped-def]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


def _say(document: object) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], float(sys.argv[2])))
