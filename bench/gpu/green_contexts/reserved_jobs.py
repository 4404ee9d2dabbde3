"""The jobs of ``green_contexts`` as Isochrone loads them: with its parameter ``reserved_sms``, and without."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.models.specs import ModelSpec
from isochrone.errors import IsochroneError
from isochrone.models.repository.repository import Repository
from isochrone.worker.catalog.loading import prepare


class ServedJob:
    """One model of a repository, loaded as a worker loads it, called without sockets. ``reserved``: SMs; 0: none."""

    def __init__(self, repository: Path, spec: ModelSpec, batch: int, reserved: int = 0) -> None:
        description = Repository([repository]).read(spec.name)
        if reserved:
            description.config.parameters["reserved_sms"].string_value = str(reserved)
        self.batch = batch
        self._inputs = {name: np.resize(each, (batch, *each.shape[1:])) for name, each in spec.samples().items()}
        try:
            (self._executable,) = prepare(description, 1).executables
        except IsochroneError as error:
            raise RuntimeError(str(error)) from error
        self._flights: deque[Any] = deque()

    def call(self) -> None:
        """Once, from host memory to host memory."""
        self._executable.execute(self._inputs, None)

    def launch(self) -> Any:
        """Once; ``synchronize`` of what is returned waits for it."""
        executable: Any = self._executable
        if not executable.overlaps:
            self.call()
            return None
        self._flights.append(executable._launch([self._inputs], [self.batch], [None], self.batch, ()))
        return self

    def synchronize(self) -> None:
        """Waits for the oldest of those that are in flight."""
        self._executable.collect_batch(self._flights.popleft())

    def close(self) -> None:
        self._executable.close()
