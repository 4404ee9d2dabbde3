"""How long a what-if question takes, from a browser's click to the answer, for a large synthetic fleet.

    python -m bench.console_what_if [--workers 100] [--models 4] [--rounds 3]

A child process is the controller (``bench.synthetic_controller``); this process answers for all workers, each at a port
of its own, with the statistics and the configurations of its models. Questions go to ``POST /v1/what-if``, as the page
sends them. Every question begins with a new reading of all workers. It does not prove how good the answers are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from contextlib import AsyncExitStack, suppress

import httpx

from bench.synthetic_controller import synthetic_controller
from bench.synthetic_fleet import SyntheticFleet

_QUESTIONS = (["lose=edge-1"], ["load=2"], ["policy=least_connections"], ["lose=gpu-1", "load=3", "policy=round_robin"])
#: Seconds between two questions: a situation is shared with later questions for two.
_PAUSE = 2.1
_EXECUTIONS = 10_000
_CONFIG = json.dumps(
    {
        "max_batch_size": 8,
        "dynamic_batching": {"max_queue_delay_microseconds": 500},
        "instance_group": [{"count": 1}],
    }
).encode()


def _statistics(fleet: SyntheticFleet) -> bytes:
    """The page of one worker. Ensembles are left out, as their stages have the times."""

    def batch(rows: int, mean_ms: float) -> dict[str, object]:
        # A batch of 8 takes as long as 4 requests.
        took = round(mean_ms * 1e6 * 0.65 * (1 + 3 * (rows - 1) / 7))
        none = {"count": _EXECUTIONS, "ns": 0}
        infer = {"count": _EXECUTIONS, "ns": _EXECUTIONS * took}
        return {"batch_size": rows, "compute_input": none, "compute_infer": infer, "compute_output": none}

    done = {"count": 13 * _EXECUTIONS, "ns": 0}
    versions = [
        {
            "name": name,
            "version": version,
            "inference_stats": {"success": done, "queue": done},
            "batch_stats": [batch(rows, mean) for rows in (1, 4, 8)],
        }
        for name, version, _, _, mean in fleet.models
        if name != "pipeline"
    ]
    return json.dumps({"model_stats": versions}).encode()


async def _workers(stack: AsyncExitStack, count: int, page: bytes) -> list[int]:
    """Their ports."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
                body = _CONFIG if path.endswith(b"/config") else page
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        writer.close()

    servers = [
        await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0)) for _ in range(count)
    ]
    return [server.sockets[0].getsockname()[1] for server in servers]


async def _ask(port: int, rounds: int) -> dict[str, object]:
    took: list[float] = []
    requests: list[int] = []
    verdicts: dict[str, str] = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
        for _ in range(rounds):
            for questions in _QUESTIONS:
                await asyncio.sleep(_PAUSE)
                started = time.monotonic()
                answer = await client.post("/v1/what-if", json={"questions": questions})
                took.append(time.monotonic() - started)
                found = answer.json()
                if answer.is_error:
                    raise SystemExit(f"after {took[-1]:.2f} s: {answer.status_code} {found}")
                requests.append(found["requests"])
                verdicts[" ".join(questions)] = found["verdict"]
                models, workers = len(found["models"]), len(found["workers"])
    return {
        "seconds": [round(each, 2) for each in took],
        "longest_s": round(max(took), 2),
        "simulated_requests": requests,
        "verdicts": verdicts,
        "answered_models": models,
        "answered_workers": workers,
    }


async def _measure(arguments: argparse.Namespace) -> dict[str, object]:
    fleet = SyntheticFleet(arguments.workers, models=arguments.models)
    async with AsyncExitStack() as stack:
        ports = await _workers(stack, arguments.workers, _statistics(fleet))
        started = synthetic_controller(arguments.workers, arguments.models, ports)
        _, port = await asyncio.to_thread(started.__enter__)
        try:
            return await _ask(port, arguments.rounds)
        finally:
            started.__exit__(None, None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found = asyncio.run(_measure(arguments))
    given = {"workers": arguments.workers, "models": arguments.models}
    print(json.dumps({**given, **found, "load_average": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
