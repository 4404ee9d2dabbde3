"""The response cache: whole responses for repeated requests.

It is read before a request is queued and filled after it was computed, for models whose configuration enables it. A key
covers everything that can change an answer, such as the version's digest, and nothing else: never the request's id.
Stateful models must not use it. Returned arrays are shared and read-only. Only for the loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from isochrone.observe.snapshot import CacheSnapshot

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors

#: Parameters that change the transport of an answer, not its content.
_TRANSPORT_PARAMETERS: Final = frozenset({"binary_data_output", "triton_enable_empty_final_response"})
#: Bytes of an entry beside its data (key, dictionaries, list links), and of each array object in it. Without them, a
#: cache of scalars would use many times its limit.
_ENTRY_OVERHEAD: Final = 512
_ARRAY_OVERHEAD: Final = 128
#: A ``bytes`` object beside its data; ``nbytes`` includes the pointer to it.
_ELEMENT_OVERHEAD: Final = 33


class ResponseKey(NamedTuple):
    """The key of a response. The model is in plain text, so that an unload can find its entries."""

    model_name: str
    model_version: str
    fingerprint: bytes


def response_key(request: InferRequest, model_name: str, model_version: str, digest: str) -> ResponseKey:
    """The key of a request, for the version that serves it."""
    plan = request.plan
    declared = sorted(plan.inputs)
    parameters = sorted(item for item in plan.parameters.items() if item[0] not in _TRANSPORT_PARAMETERS)
    # repr of nested tuples of str, int, float and bool is unambiguous: 1, True and "1" differ.
    head = repr((model_name, model_version, digest, declared, plan.outputs, parameters))
    # 256 bits: a collision would give one caller another's answer.
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
    # Through a view: bytes() of a number returns that many zeros.
    return bytes(memoryview(element))


def accounted_bytes(tensors: Tensors) -> int:
    """The memory of these tensors, including elements of BYTES and object overheads."""
    total = _ENTRY_OVERHEAD
    for name, tensor in tensors.items():
        total += _ARRAY_OVERHEAD + len(name) + tensor.nbytes
        if tensor.dtype.hasobject:
            total += sum(_ELEMENT_OVERHEAD + len(_element_bytes(element)) for element in tensor.flat)
    return total


def frozen_copy(tensor: Tensor) -> Tensor:
    """A read-only copy."""
    copy = np.array(tensor, order="C")
    if copy.dtype.hasobject:
        # Copying an object array copies pointers; a bytearray or view behind one could still change.
        flat = copy.reshape(-1)
        for index, element in enumerate(flat):
            flat[index] = _element_bytes(element)
    copy.setflags(write=False)
    return copy


class ResponseCache:
    """Evicts the least recently used responses; the accounted size never exceeds ``limit_bytes``."""

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
        #: Total time of look-ups and insertions, added by the callers, who read the clock anyway.
        self.lookup_ns = self.insertion_ns = 0
        #: Least recently used first.
        self._entries: OrderedDict[ResponseKey, tuple[Tensors, int]] = OrderedDict()
        #: (model, version) → keys, so that an unload need not search the whole cache.
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
        # The dictionary is a copy; its arrays are shared and read-only.
        return dict(entry[0])

    def insert(self, key: ResponseKey, tensors: Tensors) -> bool:
        """Stores a copy; False: it is larger than the whole cache."""
        size = accounted_bytes(tensors)
        if size > self.limit_bytes:
            return False
        if key in self._entries:
            self._remove(key)
        while self.bytes_used + size > self.limit_bytes:
            self._remove(next(iter(self._entries)))
            self.evictions += 1
        self._entries[key] = ({name: frozen_copy(tensor) for name, tensor in tensors.items()}, size)
        self._of_model.setdefault(key[:2], set()).add(key)
        self.bytes_used += size
        return True

    def forget(self, model_name: str, model_version: str) -> int:
        """Removes every response of a version that is being unloaded; returns their number."""
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
