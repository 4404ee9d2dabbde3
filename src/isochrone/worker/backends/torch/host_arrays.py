"""Arrays of a request as torch's tensors on the CPU, and back, in the same memory where possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from isochrone.worker.backends.tensors.receive_buffers import writable

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor


def to_torch(torch: Any, array: Tensor) -> Any:
    brain = array.dtype == ml_dtypes.bfloat16
    if brain:  # numpy and torch cannot convert each other's bfloat16; two-byte integers can pass
        array = array.view(np.int16)
    # Torch has no read-only tensors, and TorchScript may write to its arguments.
    tensor = torch.from_numpy(writable(array))
    return tensor.view(torch.bfloat16) if brain else tensor


def to_numpy(torch: Any, value: Any) -> Tensor:
    tensor = value.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        array: Tensor = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        array = tensor.numpy()
    return array
