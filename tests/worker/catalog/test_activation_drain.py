"""An unloaded version frees its activation cache: plans of requests may keep the version itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import until

from isochrone.clock import now_ns
from isochrone.errors import Unavailable
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import Plan
from isochrone.worker.activation_cache.reuse import SampledRequest
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.served_version import ServedVersion
from sample_models import write_config, write_python

CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "picture" data_type: TYPE_UINT8 dims: [ 16, 16 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
    parameters { key: "activation_cache" value { string_value: "temporal" } }
    parameters { key: "activation_cache_age_ms" value { string_value: "3600000" } }
    parameters { key: "activation_cache_sample_share" value { string_value: "SHARE" } }
"""
MODEL = """
    class Model:
        def infer(self, inputs):
            return {"y": inputs["picture"].mean((1, 2), dtype="float32")[:, None]}
"""


async def ask(served: ServedVersion) -> float:
    picture = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    plan = Plan("m", "", (("picture", "UINT8", picture.shape),), None, {"camera": "front"})
    request = RecordedRequest(plan, {"picture": picture}, now_ns())
    served.submit(request)
    await until(lambda: request.answers)
    return float(request.answers[0]["y"].item())


def write_model(repository: Path, share: str) -> None:
    write_python(repository / "m", MODEL)
    write_config(repository / "m", CONFIG.replace("SHARE", share))


def test_an_unloaded_version_keeps_no_key_frames(tmp_path: Path) -> None:
    write_model(tmp_path, "0")

    async def play() -> None:
        catalog = Catalog(Repository([tmp_path]), None, 30)
        try:
            await catalog.load("m")
            served = catalog.find("m", "")
            assert served.activations is not None
            assert [await ask(served) for _ in range(2)] == [127.5, 127.5]
            held = served.activations.snapshot()
            assert (held.entries, held.hits["temporal"]) == (1, 1)
            assert held.bytes_used > 0
            await catalog.unload("m")
            await until(lambda: served not in catalog._drains.versions)
            left = served.activations.snapshot()
            assert (left.entries, left.bytes_used) == (0, 0)
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.interpreted
def test_a_sampled_hit_that_the_queue_rejects_is_answered_with_what_is_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "1")

    async def play() -> None:
        catalog = Catalog(Repository([tmp_path]), None, 30)
        try:
            await catalog.load("m")
            served = catalog.find("m", "")
            assert await ask(served) == 127.5
            submitted: list[object] = []

            def reject(request: object) -> None:
                submitted.append(request)
                raise Unavailable("the queue is full")

            monkeypatch.setattr(served.runner, "submit", reject)
            assert await ask(served) == 127.5
            assert isinstance(submitted[0], SampledRequest)
            assert served.in_flight == 0
            monkeypatch.undo()
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 60))
