"""The Ray Serve application of ``ray_serve``: doubles 64 floats. ``serve_identity.py ADDRESS PORT READY_FILE``.

One replica behind Serve's own proxy, on a cluster that runs already.
"""

import signal
import sys
from pathlib import Path

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 1})
class Doubler:
    """async, so that no request waits for a thread."""

    async def __call__(self, request: Request) -> dict[str, object]:
        body = await request.json()
        return {"id": body["id"], "values": [2 * value for value in body["values"]]}


def main(address: str, port: int, ready: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ray.init(address=address, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Doubler.bind(), route_prefix="/double")  # type: ignore[attr-defined]
        ready.touch()
        signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
