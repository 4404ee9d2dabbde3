"""Where a graph can be divided into two stages, and which tensors cross. Pure.

A stage 1 is a set of nodes that holds everything its nodes depend on. There are exponentially many; two families of
them are looked at: the nodes up to a position in the order of the file, and all that one tensor depends on. The second
finds each tensor that alone separates a graph, in whatever order a file lists its branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isochrone.optimize.partitioning.graph import Graph

#: That may cross a cut.
MOST_TENSORS = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """``first``: the nodes of stage 1, as bits. Without any, the whole model is stage 2; with all, stage 1."""

    first: int
    #: Tensors that stage 2 reads and does not make: inputs of the model among them. Sorted.
    crossing: tuple[str, ...]

    def has(self, position: int) -> bool:
        return bool(self.first >> position & 1)


def all_cuts(graph: Graph, most_tensors: int = MOST_TENSORS) -> list[Cut]:
    """Every known cut that at most ``most_tensors`` cross, by the number of nodes in stage 1.

    Cuts that leave nothing to do for a stage are not among them: ``whole`` makes those. Of cuts with the same crossing
    tensors, the one with the smallest stage 1 is kept: the others move nodes that send nothing.
    """
    varying = _varying(graph)
    found: dict[tuple[str, ...], Cut] = {}
    for first in sorted(set(_stages(graph)), key=lambda mask: (mask & varying).bit_count()):
        if not first & varying or first & varying == varying or _makes_output(graph, first):
            continue
        crossing = _crossing(graph, first)
        if len(crossing) <= most_tensors:
            found.setdefault(crossing, Cut(first, crossing))
    return sorted(found.values(), key=lambda cut: (cut.first & varying).bit_count())


def whole(graph: Graph, in_first: bool) -> Cut:
    """The model on one side: what crosses is its outputs, or its inputs."""
    if in_first:
        return Cut((1 << len(graph.nodes)) - 1, tuple(sorted(graph.outputs)))
    return Cut(0, tuple(sorted(graph.inputs)))


def _varying(graph: Graph) -> int:
    return sum(1 << position for position in range(len(graph.nodes)) if graph.is_varying(position))


def _stages(graph: Graph) -> Iterator[int]:
    prefix = 0
    for position in range(len(graph.nodes)):
        prefix |= 1 << position
        yield prefix
        yield graph.ancestors[position]


def _makes_output(graph: Graph, first: int) -> bool:
    """Whether stage 1 makes an output of the model: stage 2 alone answers."""
    outputs = set(graph.outputs)
    return any(
        first >> position & 1 and graph.is_varying(position) and not outputs.isdisjoint(node.makes)
        for position, node in enumerate(graph.nodes)
    )


def _crossing(graph: Graph, first: int) -> tuple[str, ...]:
    before = set(graph.inputs)
    read: set[str] = set(graph.outputs)
    for position, node in enumerate(graph.nodes):
        if not graph.is_varying(position):
            continue
        if first >> position & 1:
            before.update(node.makes)
        else:
            read |= node.reads
    return tuple(sorted(before & read))
