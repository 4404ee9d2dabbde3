"""How tensors pass between the ranks of a parallel instance: torch.distributed, over loopback alone.

Tensors on CPUs pass through gloo, those on GPUs through NCCL. What one stage sends to the next begins with a header on
gloo, which has types and shapes, or says that the sender failed: so a model may give tensors of any shape to its next
stage, and a failure reaches the last stage instead of leaving it waiting.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import distributed

from isochrone.errors import ModelFailed
from isochrone.worker.backends.torch.parallel.layout import Layout
from isochrone.worker.backends.torch.parallel.messages import TensorHead

_HEADER_BYTES = 4096
_LENGTH_BYTES = 4
#: For ranks that have all begun to connect.
_MEETING_SECONDS = 60
#: The interfaces that gloo and NCCL listen on. Ranks are processes of one machine.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class Header(msgspec.Struct, array_like=True):
    """What follows: one tensor, a tuple of them, a dict of them, or nothing since the sender failed."""

    kind: str
    tensors: list[TensorHead] = []


_TENSOR, _TUPLE, _DICT, _FAILED = "tensor", "tuple", "dict", "failed"
_headers = msgspec.msgpack.Decoder(Header)
_encoder = msgspec.msgpack.Encoder()


class StageFailed(Exception):
    """An earlier stage failed in this micro-batch."""


class Transport:
    """The connections of one rank."""

    def __init__(self, layout: Layout, rank: int, store: int, device: str, timeout_seconds: int) -> None:
        """``store``: the descriptor of a file that all ranks have open; there they find each other."""
        for name, value in _LOOPBACK.items():
            os.environ.setdefault(name, value)
        self._layout = layout
        self._rank = rank
        self._device = device
        self._pending: list[tuple[Any, Any]] = []
        limit = datetime.timedelta(seconds=timeout_seconds)
        # A file without a name: it is gone with the last rank, however that ends.
        found = distributed.FileStore(f"/proc/self/fd/{store}", layout.ranks)
        found.set_timeout(datetime.timedelta(seconds=max(timeout_seconds, _MEETING_SECONDS)))
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, store=found, rank=rank, world_size=layout.ranks, timeout=limit)
        #: The ranks of this rank's stage. Every rank has to take part in the making of every group.
        self.stage_group: Any = None
        for stage in range(layout.pipeline):
            group = distributed.new_group(layout.ranks_of(stage), timeout=limit)
            if stage == layout.stage_of(rank):
                self.stage_group = group

    def share_inputs(self, heads: Sequence[TensorHead], inputs: dict[str, Any] | None) -> dict[str, Any]:
        """The inputs of a batch, for a rank of the first stage; ``inputs``: those of rank 0, on its device."""
        tensors = {head.name: _empty(head, self._device) for head in heads} if inputs is None else inputs
        if self._layout.tensor > 1:
            for tensor in tensors.values():
                if tensor.numel():
                    distributed.broadcast(_bytes_of(tensor), 0, group=self.stage_group)
        return tensors

    def send(self, rank: int, header: Any, tensors: Mapping[str, Any]) -> None:
        """Starts to send what ``describe`` returned; ``flush`` waits for the end."""
        self._begin(rank, header)
        for tensor in tensors.values():
            self._begin(rank, tensor)

    def send_failure(self, rank: int) -> None:
        self._begin(rank, _encoded(Header(_FAILED)))

    def receive(self, rank: int, device: str | None = None) -> Any:
        """What another rank sent, on ``device``; raises ``StageFailed`` if that failed."""
        buffer = torch.empty(_HEADER_BYTES, dtype=torch.uint8)
        distributed.recv(buffer, rank)
        data = buffer.numpy().tobytes()
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = _headers.decode(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        if header.kind == _FAILED:
            raise StageFailed
        tensors = {}
        for head in header.tensors:
            tensor = _empty(head, device or self._device)
            if tensor.numel():
                distributed.recv(_bytes_of(tensor), rank)
            tensors[head.name] = tensor
        if header.kind == _DICT:
            return tensors
        values = tuple(tensors.values())
        return values if header.kind == _TUPLE else values[0]

    def flush(self) -> None:
        """Waits until everything is sent."""
        pending, self._pending = self._pending, []
        for work, _ in pending:
            work.wait()

    def _begin(self, rank: int, tensor: Any) -> None:
        tensor = tensor.contiguous()
        if tensor.numel():
            # The tensor must live until it is sent.
            self._pending.append((distributed.isend(_bytes_of(tensor), rank), tensor))


def describe(value: Any) -> tuple[Any, dict[str, Any]]:
    """The header and the tensors of a stage's result. Raises ``ModelFailed`` if it cannot be sent."""
    if isinstance(value, torch.Tensor) and not hasattr(value, "placements"):
        return _encoded(Header(_TENSOR, [_head("", value)])), {"": value}
    kind, tensors = _TUPLE, value
    if isinstance(value, (tuple, list)):
        tensors = {str(number): each for number, each in enumerate(value)}
    elif isinstance(value, dict):
        kind = _DICT
    else:
        tensors = {"": value}
    for name, each in tensors.items():
        # A DTensor is in several ranks.
        if not isinstance(name, str) or not isinstance(each, torch.Tensor) or hasattr(each, "placements"):
            given = f"a {type(each).__name__}"
            raise ModelFailed(f"between stages: expected a tensor, or a tuple or dict of tensors, given {given}")
    return _encoded(Header(kind, tensor_heads(tensors))), tensors


def _encoded(header: Header) -> Any:
    body = _encoder.encode(header)
    if len(body) > _HEADER_BYTES - _LENGTH_BYTES:
        raise ModelFailed(f"between stages: {len(header.tensors)} tensors are more than can be described")
    padded = (len(body).to_bytes(_LENGTH_BYTES, "little") + body).ljust(_HEADER_BYTES, b"\0")
    return torch.frombuffer(bytearray(padded), dtype=torch.uint8)


def tensor_heads(tensors: dict[str, Any]) -> list[TensorHead]:
    return [_head(name, tensor) for name, tensor in tensors.items()]


def _head(name: str, tensor: Any) -> TensorHead:
    return TensorHead(name, str(tensor.dtype).rpartition(".")[2], list(tensor.shape))


def _empty(head: TensorHead, device: str) -> Any:
    return torch.empty(head.shape, dtype=getattr(torch, head.dtype), device=device)


def _bytes_of(tensor: Any) -> Any:
    """Bytes pass for every type, also those that NCCL has not."""
    return tensor.reshape(-1).view(torch.uint8)
