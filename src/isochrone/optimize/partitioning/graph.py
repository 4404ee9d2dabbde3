"""The graph of an ONNX model as sets of nodes: what a cut needs to know of it, and nothing else. Pure.

A node that depends on no input of the model is constant: both stages have their own copy of it, so its results never
cross a cut. A node with a body (``If``, ``Loop``, ``Scan``) is one node that also reads what its bodies take from
outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """One operation, by the tensors that it reads and makes."""

    operator: str
    reads: frozenset[str]
    makes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run."""

    nodes: tuple[Node, ...]
    #: Without those that have an initializer, which is their default.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: Positions of the nodes that depend on no input.
    constant: frozenset[int]
    #: For each node the set of all nodes that it depends on, itself included, as bits.
    ancestors: tuple[int, ...]

    def is_varying(self, position: int) -> bool:
        return position not in self.constant


def graph_of(model: Any) -> Graph:
    """The graph of a ``ModelProto``."""
    proto = model.graph
    initialized = {tensor.name for tensor in proto.initializer}
    initialized |= {tensor.values.name for tensor in proto.sparse_initializer}
    inputs = tuple(value.name for value in proto.input if value.name not in initialized)
    nodes = tuple(
        Node(node.op_type, frozenset(reads_of(node)), tuple(name for name in node.output if name))
        for node in proto.node
    )
    return connected(nodes, inputs, tuple(value.name for value in proto.output))


def connected(nodes: tuple[Node, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
    made_by = {name: position for position, node in enumerate(nodes) for name in node.makes}
    ancestors: list[int] = []
    constant: set[int] = set()
    from_outside = set(inputs)
    for position, node in enumerate(nodes):
        before = [made_by[name] for name in node.reads if name in made_by]
        mask = 1 << position
        for other in before:
            mask |= ancestors[other]
        ancestors.append(mask)
        if not (node.reads & from_outside) and all(other in constant for other in before):
            constant.add(position)
    return Graph(nodes, inputs, outputs, frozenset(constant), tuple(ancestors))


def reads_of(node: Any) -> Iterator[str]:
    """The tensors that a ``NodeProto`` reads, those of its bodies included."""
    yield from (name for name in node.input if name)
    for body in _bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            yield from (name for name in reads_of(inner) if name not in own)
            own.update(inner.output)
        yield from (value.name for value in body.output if value.name not in own)


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
