"""A Ray Serve application that returns 64 floats: ray_identity.py PORT DIRECTORY."""

import signal
import sys
from pathlib import Path

import ray  # type: ignore[import-not-found]
from ray import serve
from starlette.requests import Request  # type: ignore[import-not-found]


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
class Identity:
    """async, so that no request waits for a thread."""

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        return {"values": (await request.json())["values"]}


def main(port: int, directory: Path) -> None:
    # A termination must run Ray's own shutdown, or its daemons outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=100 << 20,
        _temp_dir=str(directory),
        log_to_driver=False,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Identity.bind(), route_prefix="/identity")  # type: ignore[attr-defined]
        (directory / "ready").touch()
        signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
