"""A kernel that says on which multiprocessors it runs. Imported by tests on a GPU: torch for CUDA brings triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import smid

#: Far more than a GPU has multiprocessors.
_PROGRAMS = 8192


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def write_smid(target):  # type: ignore[no-untyped-def]  # triton reads annotations
    tl.store(target + tl.program_id(0), smid())


def sms_of(stream: Any, *, in_graph: bool) -> set[int]:
    """The numbers of the SMs on which a kernel of many programs ran, launched on a stream or by a graph."""
    found = torch.full((_PROGRAMS,), -1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        write_smid[(_PROGRAMS,)](found)
        stream.synchronize()
        if in_graph:
            found.fill_(-1)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                write_smid[(_PROGRAMS,)](found)
            graph.replay()
    stream.synchronize()
    numbers = set(found.cpu().tolist())
    assert -1 not in numbers
    return numbers
