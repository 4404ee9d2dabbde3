"""Whole responses, kept for requests that ask the same again.

Looked into before a request is queued, filled after it was computed, for models whose configuration asks for
it. A key stands for everything that can change an answer, the version's digest among it, and for nothing
else: never the request's id. Models with state (sequences) must not use it. Arrays handed out are shared and
read-only. Event loop's thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from isochrone.observe.snapshot import CacheSnapshot

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors

#: Parameters that say how an answer travels, not what it is.
_TRANSPORT_PARAMETERS: Final = frozenset({"binary_data_output", "triton_enable_empty_final_response"})
#: Bytes an entry costs beside its data (key, dictionaries, list links) and each array object in it. Counted,
#: because a cache of scalars would otherwise hold many times its limit.
_ENTRY_OVERHEAD: Final = 512
_ARRAY_OVERHEAD: Final = 128
#: A ``bytes`` object beside its data, and the pointer to it in the array is in ``nbytes``.
_ELEMENT_OVERHEAD: Final = 33


class ResponseKey(NamedTuple):
    """Names a response. The model stands in clear, so that its entries can be found when it is unloaded."""

    model_name: str
    model_version: str
    fingerprint: bytes


def response_key(request: InferRequest, model_name: str, model_version: str, digest: str) -> ResponseKey:
    """The key of a request to the version that will serve it (the request may say "" for it)."""
    plan = request.plan
    declared = sorted(plan.inputs)
    parameters = sorted(item for item in plan.parameters.items() if item[0] not in _TRANSPORT_PARAMETERS)
    # repr of nested tuples of str, int, float and bool is one-to-one: it quotes, and it tells 1 from True and
    # "1".
    head = repr((model_name, model_version, digest, declared, plan.outputs, parameters))
    # 256 bits: two requests sharing a fingerprint would hand one caller another's answer.
    fingerprint = blake2b(digest_size=32)
    _update_prefixed(fingerprint, head.encode("utf-8", "surrogatepass"))
    for name, _, _ in declared:
        tensor = request.inputs[name]
        if tensor.dtype.hasobject:
            for element in tensor.flat:
                _update_prefixed(fingerprint, _element_bytes(element))
        else:
            # Through uint8, since BF16 arrays do not export a buffer of their own type.
            _update_prefixed(fingerprint, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return ResponseKey(model_name, model_version, fingerprint.digest())


def _update_prefixed(fingerprint: Any, data: bytes | memoryview) -> None:
    fingerprint.update(len(data).to_bytes(8, "little"))
    fingerprint.update(data)


def _element_bytes(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode("utf-8", "surrogatepass")
    # Through a view: bytes() of a number would be that many zeros.
    return bytes(memoryview(element))


def accounted_bytes(tensors: Tensors) -> int:
    """What keeping these tensors costs, elements of BYTES and the objects around them included."""
    total = _ENTRY_OVERHEAD
    for name, tensor in tensors.items():
        total += _ARRAY_OVERHEAD + len(name) + tensor.nbytes
        if tensor.dtype.hasobject:
            total += sum(_ELEMENT_OVERHEAD + len(_element_bytes(element)) for element in tensor.flat)
    return total


def _frozen_copy(tensor: Tensor) -> Tensor:
    copy = np.array(tensor, order="C")
    if copy.dtype.hasobject:
        # Copying an object array copies pointers; a bytearray or view behind one could still change.
        flat = copy.reshape(-1)
        for index, element in enumerate(flat):
            flat[index] = _element_bytes(element)
    copy.setflags(write=False)
    return copy


class ResponseCache:
    """Least recently used goes first; what is kept never counts more than ``limit_bytes``."""

    __slots__ = (
        "_entries",
        "_of_model",
        "bytes_used",
        "evictions",
        "hits",
        "insertion_ns",
        "limit_bytes",
        "lookup_ns",
        "misses",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes_used = 0
        self.evictions = self.hits = self.misses = 0
        #: What finding and keeping took in all; added up by the callers, who look at the clock anyway.
        self.lookup_ns = self.insertion_ns = 0
        #: Oldest use first.
        self._entries: OrderedDict[ResponseKey, tuple[Tensors, int]] = OrderedDict()
        #: The keys of each (model, version), so that unloading one need not walk the whole cache on the loop.
        self._of_model: dict[tuple[str, str], set[ResponseKey]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, key: ResponseKey) -> Tensors | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        # A dictionary of the caller's own; the arrays in it are shared, and read-only.
        return dict(entry[0])

    def insert(self, key: ResponseKey, tensors: Tensors) -> bool:
        """Keeps a copy; False if it is larger than the whole cache may be."""
        size = accounted_bytes(tensors)
        if size > self.limit_bytes:
            return False
        if key in self._entries:
            self._remove(key)
        while self.bytes_used + size > self.limit_bytes:
            self._remove(next(iter(self._entries)))
            self.evictions += 1
        self._entries[key] = ({name: _frozen_copy(tensor) for name, tensor in tensors.items()}, size)
        self._of_model.setdefault(key[:2], set()).add(key)
        self.bytes_used += size
        return True

    def forget(self, model_name: str, model_version: str) -> int:
        """Drops every response of a version that is going away; returns how many."""
        keys = list(self._of_model.get((model_name, model_version), ()))
        for key in keys:
            self._remove(key)
        return len(keys)

    def snapshot(self) -> CacheSnapshot:
        return CacheSnapshot(
            entries=len(self._entries),
            bytes_used=self.bytes_used,
            limit_bytes=self.limit_bytes,
            hits=self.hits,
            misses=self.misses,
            evictions=self.evictions,
            lookup_ns=self.lookup_ns,
            insertion_ns=self.insertion_ns,
        )

    def _remove(self, key: ResponseKey) -> None:
        self.bytes_used -= self._entries.pop(key)[1]
        keys = self._of_model[key[:2]]
        keys.remove(key)
        if not keys:
            del self._of_model[key[:2]]
