"""A loader for the process of an isolated model: its executable raises what torch raises on a GPU.

The first number of the input decides: 1 an illegal access, 2 an error of cuDNN after one, 3 out of memory, 4 an
invalid input. Other numbers are doubled. The parameter "fails" makes the load fail.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.interface import Executable
from isochrone.worker.backends.isolation.sent_context import received_context
from isochrone.worker.backends.torch.isolated import GuardedExecutable

if TYPE_CHECKING:
    import msgspec

    from isochrone.protocol.messages import Tensors


class Cuda:
    """Stands in for ``torch.cuda``."""

    is_lost = False

    def is_initialized(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be …")


class OnGpu(Executable):
    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        order = int(inputs["x"].flat[0])
        if self._cuda.is_lost:
            raise AssertionError("a process without its GPU was called")
        if order == 1:
            self._cuda.is_lost = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …")
        if order == 2:
            self._cuda.is_lost = True
            raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
        if order == 3:
            raise MemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        if order == 4:
            raise InvalidArgument("an index beyond the table")
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        pass


def load_in_child(model: msgspec.Raw) -> Executable:
    context = received_context(model)
    if context.parameters.get("fails"):
        raise ZeroDivisionError(f"on GPU {context.gpu}")
    assert "isolation" not in context.parameters
    cuda = Cuda()
    return GuardedExecutable(OnGpu(cuda), f"model '{context.model_name}' version 1", SimpleNamespace(cuda=cuda))
