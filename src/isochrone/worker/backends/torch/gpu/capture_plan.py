"""The plan of CUDA graphs: which batch sizes are captured, and which of them a batch is padded to. Pure.

A graph has fixed shapes, so a batch of other size is padded up to the next captured one; the padding rows are zeros and
their results are discarded. Larger graphs are captured first: the smaller ones then fit into the memory that they left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Input name → its dims without the batch's.
Dims = tuple[tuple[str, tuple[int, ...]], ...]


def dims_key(dims: Mapping[str, Sequence[int]]) -> Dims:
    return tuple(sorted((name, tuple(sizes)) for name, sizes in dims.items()))


@dataclass(frozen=True, slots=True)
class CaptureSize:
    """One graph: batches of ``lowest`` to ``rows`` rows run in it."""

    rows: int
    lowest: int
    dims: Dims


class CapturePlan:
    """The graphs of one instance."""

    def __init__(self, sizes: Iterable[CaptureSize]) -> None:
        #: Largest first: the order of capture.
        self.sizes = tuple(sorted(sizes, key=lambda size: (-size.rows, size.dims)))
        self._by_dims: dict[Dims, list[CaptureSize]] = {}
        for size in reversed(self.sizes):
            self._by_dims.setdefault(size.dims, []).append(size)

    def __len__(self) -> int:
        return len(self.sizes)

    def graph_for(self, rows: int, dims: Dims) -> CaptureSize | None:
        """The smallest graph that takes the batch; None: it runs without a graph."""
        sizes = self._by_dims.get(dims)
        if sizes is None:
            return None
        for size in sizes[bisect_left(sizes, rows, key=lambda size: size.rows) :]:
            if size.lowest <= rows:
                return size
        return None

    def without(self, failed: CaptureSize) -> CapturePlan:
        """The plan without a graph that could not be captured, or for which memory is missing."""
        return CapturePlan(size for size in self.sizes if size is not failed)


def default_sizes(max_rows: int) -> list[int]:
    """Fine steps where a padded row costs most: 1, 2, 4, 8, then every 8th to 64, every 16th to 256, every 32nd.

    The lower steps are those of SGLang's decode graphs; at 57 of 64 rows the padding is 12 % of the batch.
    """
    sizes = {1, 2, 4, 8, *range(16, 65, 8), *range(80, 257, 16), *range(288, max_rows + 1, 32)}
    return sorted({size for size in sizes if size <= max_rows} | {max_rows})


def plan_captures(
    max_batch_size: int,
    dims: Mapping[str, Sequence[int]],
    *,
    sizes: Sequence[int] = (),
    preferred: Sequence[int] = (),
    graph_specs: Sequence[Any] = (),
) -> CapturePlan:
    """The graphs of a model with these inputs; -1 in ``dims`` is a size that callers choose.

    ``sizes`` are those of the configuration; none: the default, and the ``preferred`` sizes of the batcher. A
    ``graph_spec`` of Triton's configuration replaces both: it is exact, unless it has a lower bound. A model with a
    free dimension has graphs only where a ``graph_spec`` fixes it.
    """
    if graph_specs:
        return CapturePlan(_specified(spec, dims) for spec in graph_specs)
    if any(size < 0 for own in dims.values() for size in own):
        return CapturePlan(())
    key = dims_key(dims)
    if max_batch_size < 1:
        return CapturePlan((CaptureSize(0, 0, key),))
    chosen = sorted(set(sizes) or {*default_sizes(max_batch_size), *preferred})
    lows = [1, *(size + 1 for size in chosen)]
    return CapturePlan(CaptureSize(size, low, key) for size, low in zip(chosen, lows, strict=False))


def _specified(spec: Any, dims: Mapping[str, Sequence[int]]) -> CaptureSize:
    fixed = {name: tuple(spec.input[name].dim) if name in spec.input else tuple(own) for name, own in dims.items()}
    lowest = spec.graph_lower_bound.batch_size if spec.HasField("graph_lower_bound") else spec.batch_size
    return CaptureSize(spec.batch_size, lowest, dims_key(fixed))
