"""Loads an AOTInductor package into its own process and checks the memory of the GPU: run by ``test_gpu_packages``.

torch's loader of such packages has crashed processes. Here a crash fails one test; in the tests' own process it would
end all others, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from gpu_models import on_gpu, parameter
from test_gpu_packages import ISOLATED, OUT_OF_MEMORY, free_bytes, held

from isochrone.errors import IsochroneError, Unavailable
from isochrone.worker.backends.devices.memory_ledger import Holding
from isochrone.worker.backends.torch.gpu.device import CudaDevice

#: Inside this process, whose ledger and free memory are read.
PACKAGE = ISOLATED + parameter("isolation", "thread")


def counted_and_given_back(package: Path) -> None:
    size = (package / "model.pt2").stat().st_size
    assert size > 64 << 20
    free = []
    for _ in range(5):
        before = free_bytes()
        executable = on_gpu(package, PACKAGE, "package")
        assert held(0, "package")[Holding.WEIGHTS] == size
        assert before - free_bytes() > 64 << 20
        executable.execute({"x__0": np.ones((3, 64), np.float32)}, None)
        executable.close()
        assert held(0, "package") == {}
        free.append(free_bytes())
    assert len(set(free[2:])) == 1


def does_not_fit(package: Path) -> None:
    on_gpu(package, PACKAGE, "package").close()
    before, total = torch.cuda.mem_get_info(0)
    too_much = parameter("spare_memory_mib", str(total >> 20))
    with pytest.raises(Unavailable, match=r"needs 6\d MiB \(weights 6\d MiB\)"):
        on_gpu(package, PACKAGE + too_much, "package")
    assert free_bytes() == before

    def fail(*_: Any) -> None:
        raise OUT_OF_MEMORY

    with mock.patch.object(CudaDevice, "device_bytes", fail):
        with pytest.raises(IsochroneError, match="does not fit") as refused:
            on_gpu(package, PACKAGE, "package")
        # While the error is reported.
        assert refused.value
        assert free_bytes() == before
    assert held(0, "package") == {}


if __name__ == "__main__":
    {check.__name__: check for check in (counted_and_given_back, does_not_fit)}[sys.argv[1]](Path(sys.argv[2]))
