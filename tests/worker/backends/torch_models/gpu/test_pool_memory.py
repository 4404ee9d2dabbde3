"""What the graphs of an instance hold: the segments of its own pool, whatever else the process allocates or frees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from host_models import BATCHED, loaded

from isochrone.worker.backends.torch.gpu.device import CudaDevice, HostDevice
from isochrone.worker.backends.torch.gpu.pool_memory import pool_bytes


def segment(size: int, pool: tuple[int, int], device: int = 0) -> dict[str, Any]:
    return {"device": device, "total_size": size, "segment_pool_id": pool}


SEGMENTS = [segment(2, (0, 0)), segment(30, (0, 1)), segment(5, (0, 1)), segment(100, (0, 2)), segment(7, (0, 1), 1)]


def test_only_segments_of_the_pool_on_the_device_count() -> None:
    assert pool_bytes(SEGMENTS, 0, (0, 1)) == 35
    assert pool_bytes(SEGMENTS, 1, [0, 1]) == 7
    assert pool_bytes(SEGMENTS, 0, (3, 0)) == 0
    assert pool_bytes([], 0, (0, 1)) == 0
    assert pool_bytes([{"device": 0, "total_size": 3}], 0, (0, 1)) is None


def test_versions_of_torch_that_look_at_one_pool_are_asked_for_it() -> None:
    asked: list[Any] = []

    def of_pool(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
        asked.append(mempool_id)
        return SEGMENTS[1:3]

    for snapshot in (of_pool, lambda: SEGMENTS):
        cuda = SimpleNamespace(default_stream=lambda index: None, memory_snapshot=snapshot)
        assert CudaDevice(SimpleNamespace(cuda=cuda), 0).pool_bytes((0, 1)) == 35
    assert asked == [(0, 1)]


@pytest.mark.parametrize("is_known", [True, False])
def test_what_others_allocate_meanwhile_is_not_of_the_graphs(is_known: bool) -> None:
    class Shared(HostDevice):
        """Another load allocates a gigabyte whenever one looks; each capture takes 1000 bytes."""

        captures = looks = 0

        def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
            self.captures += 1
            return super().capture(run, stream, pool, warm_runs)

        def reserved(self) -> int:
            self.looks += 1
            return self.looks << 30

        def pool_bytes(self, pool: Any) -> int | None:
            return 1000 * self.captures if is_known else None

    device = Shared(torch)
    executable = loaded(BATCHED, device=device)
    assert executable.graphs is not None
    # Four sizes of five graphs each, and the inputs: eight rows of three numbers.
    assert executable.graphs.size == (1000 * device.captures + 8 * 3 * 4 if is_known else (device.looks - 1) << 30)
    assert device.captures == 20
    executable.close()
