"""One version of a model in this process, loaded as a worker loads it, with changing instances and threads."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.clock import SECOND, now_ns
from isochrone.errors import InvalidArgument
from isochrone.models.configuration.backends import backend_name
from isochrone.models.repository.repository import Repository
from isochrone.models.runtimes import optional_runtime
from isochrone.optimize.profiling.changed_config import with_instances, without_warm_up
from isochrone.optimize.profiling.running.inputs import check_shapes, make_inputs
from isochrone.optimize.profiling.running.memory import give_back, resident_bytes
from isochrone.optimize.profiling.running.messages import Measured, Operator
from isochrone.optimize.profiling.running.operators import profile_operators
from isochrone.optimize.profiling.running.other_load import OtherLoad
from isochrone.optimize.profiling.running.timed_runs import time_runs
from isochrone.worker.backends.registry import loader
from isochrone.worker.catalog.loading import Prepared, prepare

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


class LoadedModel:
    """Measures configurations. Batches of any size run on the instances of the last load, if these are as asked."""

    def __init__(self, repository: Path, model: str, version: int, shapes: Mapping[str, Sequence[int]]) -> None:
        description = Repository([repository]).read(model, versions=[version])
        self._description = description.of_version(version)
        self._version = version
        self._shapes = check_shapes(self._description.signature, shapes)
        self._backend = backend_name(self._description.config)
        # Imported before the first look at memory: a worker imports a runtime once, whatever the instances.
        loader(self._backend, self._description.config_source)
        if self._backend in ("torch", "openvino"):
            optional_runtime(self._backend, self._backend, self._description.config_source)
        self._pair = (0, 0)
        self._prepared: Prepared | None = None
        #: With the runtime and without the model. What an earlier load has left in the allocator counts as used.
        self._before = resident_bytes()

    def measure(self, batch: int, threads: int, instances: int, least_seconds: float, seconds: float) -> Measured:
        prepared = self._load(threads, instances)
        began, before = now_ns(), OtherLoad.now()
        times = time_runs(
            prepared.executables,
            [context.cpus for context in prepared.contexts],
            lambda: self._inputs(batch),
            batch,
            least_seconds=least_seconds,
            seconds=seconds,
        )
        memory = max(0, resident_bytes() - self._before)
        others, elapsed = OtherLoad.now().since(before), (now_ns() - began) / SECOND
        return Measured(times.run_ns, times.p99_ns, times.rows_per_second, times.runs, memory, others, elapsed)

    def operators(self, batch: int, threads: int, seconds: float) -> list[Operator]:
        prepared = self._load(threads, 1)
        return profile_operators(
            self._backend, prepared.contexts[0], prepared.executables[0], self._inputs(batch), seconds
        )

    def close(self) -> None:
        prepared, self._prepared, self._pair = self._prepared, None, (0, 0)
        if prepared is not None:
            prepared.discard()
            del prepared
            gc.collect()
            give_back()

    def _load(self, threads: int, instances: int) -> Prepared:
        if self._prepared is not None and self._pair == (threads, instances):
            return self._prepared
        self.close()
        config = without_warm_up(with_instances(self._description.config, threads, instances))
        # The digest is for rollouts, and reading a large file for it takes seconds.
        prepared = prepare(replace(self._description, config=config), self._version, own_digest="")
        self._prepared, self._pair = prepared, (threads, instances)
        for executable in prepared.executables:
            if executable.decoupled or executable.overlaps or not executable.warms_up:
                self.close()
                what = "streams its answers, runs on a device or takes whole requests"
                raise InvalidArgument(f"model '{self._description.name}' {what}: such models cannot be profiled")
        return prepared

    def _inputs(self, batch: int) -> Tensors:
        return make_inputs(self._description.signature, self._shapes, batch)
