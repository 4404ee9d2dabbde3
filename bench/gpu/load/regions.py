"""Shared-memory regions of a generator's slots, made and registered with the stock tritonclient.

A generator has one region for the inputs of its slots, written once, and one for their outputs; a slot has its place in
both. A slot sends the same content again and again; other slots send others.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client

from bench.gpu.load.messages import RegionPair, infer_message
from bench.gpu.models.specs import ModelSpec
from bench.realistic.messages import Message

BYTES, SYSTEM, CUDA = "bytes", "system_shm", "cuda_shm"
TRANSPORTS = (BYTES, SYSTEM, CUDA)
#: What no model answers: an output that nobody wrote is detected.
_UNWRITTEN = np.nan


class SlotRegions:
    """``with SlotRegions(...) as regions``: registered when the block begins, removed at its end."""

    def __init__(self, kind: str, address: str, spec: ModelSpec, slots: int, prefix: str) -> None:
        self._cuda = kind == CUDA
        self._spec = spec
        self._slots = slots
        self._prefix = f"{prefix}-{os.getpid()}"
        self._address = address
        self._handles: dict[str, Any] = {}
        self._registered: list[str] = []

    def __enter__(self) -> SlotRegions:
        self._client = grpc_client.InferenceServerClient(self._address)
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unregister = "unregister_cuda_shared_memory" if self._cuda else "unregister_system_shared_memory"
        for name in self._registered:
            try:
                getattr(self._client, unregister)(name, client_timeout=10)
            except Exception as problem:
                print(f"region {name}: {problem}", flush=True)
        for handle in self._handles.values():
            self._module.destroy_shared_memory_region(handle)
        self._handles.clear()
        self._client.close()

    @property
    def _module(self) -> Any:
        if self._cuda:
            import tritonclient.utils.cuda_shared_memory as module
        else:
            import tritonclient.utils.shared_memory as module
        return module

    def _make(self) -> None:
        samples = self._spec.samples()
        count = len(next(iter(samples.values())))
        output = self._spec.output
        rows = [
            np.ascontiguousarray(values[slot % count]) for slot in range(self._slots) for values in samples.values()
        ]
        pair = self.pair(0)
        self._create(pair.inputs, rows)
        self._create(pair.output, [np.full((self._slots, *output.dims), _UNWRITTEN, output.dtype)])

    def _create(self, name: str, arrays: list[np.ndarray]) -> None:
        size = sum(array.nbytes for array in arrays)
        module = self._module
        if self._cuda:
            handle = module.create_shared_memory_region(name, size, 0)
        else:
            handle = module.create_shared_memory_region(name, f"/{name}", size)
        self._handles[name] = handle
        module.set_shared_memory_region(handle, arrays)
        if self._cuda:
            raw = module.get_raw_handle(handle)
            self._client.register_cuda_shared_memory(name, raw, 0, size, client_timeout=10)
        else:
            self._client.register_system_shared_memory(name, f"/{name}", size, client_timeout=10)
        self._registered.append(name)

    def pair(self, slot: int) -> RegionPair:
        given = sum(tensor.row_bytes for tensor in self._spec.inputs)
        taken = self._spec.output.row_bytes
        return RegionPair(f"{self._prefix}-in", f"{self._prefix}-out", slot * given, slot * taken)

    def messages(self) -> list[Message]:
        """One per slot."""
        return [infer_message(self._spec, {}, self.pair(slot)) for slot in range(self._slots)]

    def output(self, slot: int) -> np.ndarray:
        """What the server has written last."""
        spec = self._spec.output
        region = self._handles[self.pair(slot).output]
        found = self._module.get_contents_as_numpy(region, spec.dtype, [self._slots, *spec.dims])
        return np.array(found[slot])
