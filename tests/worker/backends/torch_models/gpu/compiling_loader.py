"""Compiles as for a GPU, on the CPU; and the loader of an isolated model that does so in its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from isochrone.worker.backends.isolation.sent_context import received_context
from isochrone.worker.backends.torch.files import LoadedFile
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.loading import load_on_device
from isochrone.worker.backends.torch.gpu.settings import gpu_settings

if TYPE_CHECKING:
    import msgspec

    from isochrone.worker.backends.interface import Executable


@contextmanager
def compiling_as_on_a_gpu() -> Iterator[list[Any]]:
    """torch starts its processes only for tensors on a GPU: here for all. Gives the pools that were started."""
    # Their import takes longer than torch's own, and every test run would pay for it while it collects.
    import torch._inductor as inductor
    import torch._inductor.async_compile as pools
    import torch._inductor.compile_fx as compiler

    started: list[Any] = []
    compile_graph, threads = compiler.compile_fx, inductor.config.compile_threads

    def compile_with_processes(*arguments: Any, **options: Any) -> Any:
        pools.AsyncCompile.wakeup()
        started.extend(pool for pool in pools._pool_set if pool not in started)
        return compile_graph(*arguments, **options)

    compiler.compile_fx, inductor.config.compile_threads = compile_with_processes, 2
    try:
        yield started
    finally:
        compiler.compile_fx, inductor.config.compile_threads = compile_graph, threads
        pools.shutdown_compile_workers()


class Fourfold(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :2] * 4, x.sum(1, keepdim=True)


def load_in_child(model: msgspec.Raw) -> Executable:
    context = received_context(model)
    module = Fourfold()
    file = LoadedFile(module, ["x"], [], module.to)
    with compiling_as_on_a_gpu() as started:
        executable = load_on_device(context, torch, file, (["x"], []), HostDevice(torch), gpu_settings(context), 0)
        assert started
        assert started[0].process.poll() is not None
    return executable
