"""Cuts of graphs: two stages that can run one after the other, and what crosses is exactly what is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.optimize.partitioning.cuts import Cut, all_cuts, whole
from isochrone.optimize.partitioning.graph import Graph, Node, connected


def node(reads: str, makes: str, operator: str = "Op") -> Node:
    return Node(operator, frozenset(reads.split()), tuple(makes.split()))


def chain(length: int) -> Graph:
    nodes = tuple(node(f"t{number}", f"t{number + 1}") for number in range(length))
    return connected(nodes, ("t0",), (f"t{length}",))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs, with constant nodes and with inputs that several nodes read."""
    inputs = tuple(f"i{number}" for number in range(draw(st.integers(1, 3))))
    tensors = [*inputs, "weight"]
    nodes = []
    for number in range(draw(st.integers(1, 14))):
        read = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
        made = [f"n{number}.{place}" for place in range(draw(st.integers(1, 2)))]
        nodes.append(Node("Op", frozenset(read), tuple(made)))
        tensors += made
    read_by_any = {name for each in nodes for name in each.reads}
    outputs = tuple(name for name in tensors if name not in read_by_any and name != "weight" and name not in inputs)
    return connected(tuple(nodes), inputs, outputs)


def runs(graph: Graph, nodes: set[int], given: set[str]) -> set[str]:
    """What exists after those nodes have run in order; fails if one lacks an input."""
    exists = set(given) | {"weight"}
    for position, each in enumerate(graph.nodes):
        if position in nodes:
            assert each.reads <= exists, f"node {position} lacks {each.reads - exists}"
            exists.update(each.makes)
    return exists


@given(graphs())
def test_both_stages_can_run_with_what_crosses(graph: Graph) -> None:
    everything = set(range(len(graph.nodes)))
    for cut in [*all_cuts(graph, most_tensors=99), whole(graph, True), whole(graph, False)]:
        first = {position for position in everything if cut.has(position)} | set(graph.constant)
        made = runs(graph, first, set(graph.inputs))
        assert set(cut.crossing) <= made
        second = (everything - first) | set(graph.constant)
        after = runs(graph, second, set(cut.crossing))
        varying_outputs = {
            name
            for position, each in enumerate(graph.nodes)
            for name in each.makes
            if name in graph.outputs and graph.is_varying(position)
        }
        assert varying_outputs <= after


@given(graphs(), st.integers(1, 4))
def test_few_tensors_cross_and_nothing_twice(graph: Graph, most: int) -> None:
    cuts = all_cuts(graph, most)
    assert len({cut.crossing for cut in cuts}) == len(cuts)
    for cut in cuts:
        assert 0 < len(cut.crossing) <= most
        assert list(cut.crossing) == sorted(set(cut.crossing))


def test_a_chain_can_be_cut_between_any_two_nodes() -> None:
    assert [cut.crossing for cut in all_cuts(chain(5))] == [("t1",), ("t2",), ("t3",), ("t4",)]


def test_a_residual_block_is_cut_around_it_with_one_tensor() -> None:
    nodes = (node("x", "a"), node("a", "b"), node("b", "c"), node("a c", "d"), node("d", "y"))
    cuts = all_cuts(connected(nodes, ("x",), ("y",)), most_tensors=1)
    assert [cut.crossing for cut in cuts] == [("a",), ("d",)]


def test_a_separating_tensor_is_found_whatever_the_order_of_the_branches() -> None:
    # The second branch is listed before the first one is complete; only "p" depends on "x" alone.
    nodes = (node("x", "p"), node("z", "q"), node("p", "r"), node("q", "s"), node("r s", "y"))
    crossing = {cut.crossing for cut in all_cuts(connected(nodes, ("x", "z"), ("y",)))}
    assert ("r", "z") in crossing
    assert ("p", "z") in crossing


def test_constants_never_cross() -> None:
    nodes = (node("weight", "k", "Constant"), node("x k", "a"), node("a k", "y"))
    graph = connected(nodes, ("x",), ("y",))
    assert graph.constant == {0}
    assert [cut.crossing for cut in all_cuts(graph)] == [("a",)]


def test_stage_one_makes_no_output_of_the_model() -> None:
    nodes = (node("x", "a"), node("a", "early"), node("a", "b"), node("b", "y"))
    cuts = all_cuts(connected(nodes, ("x",), ("early", "y")))
    assert [cut.crossing for cut in cuts] == [("a",), ("a", "b")]


def test_a_whole_model_sends_its_inputs_or_its_outputs() -> None:
    graph = chain(3)
    assert whole(graph, in_first=False) == Cut(0, ("t0",))
    assert whole(graph, in_first=True) == Cut(0b111, ("t3",))
