"""Which batch sizes become graphs, and which of them a batch is padded to."""

from __future__ import annotations

from itertools import pairwise

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from isochrone.worker.backends.torch.gpu.capture_plan import CapturePlan, default_sizes, dims_key, plan_captures

DIMS = {"x": (3, 8)}
KEY = dims_key(DIMS)


def specs(text: str) -> list[object]:
    message = model_config_pb2.ModelConfig()
    text_format.Parse(f"optimization {{ cuda {{ {text} }} }}", message)
    return list(message.optimization.cuda.graph_spec)


@given(st.integers(1, 512))
def test_default_sizes_rise_to_the_maximum_and_pad_little(maximum: int) -> None:
    sizes = default_sizes(maximum)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == maximum
    for smaller, larger in pairwise(sizes):
        assert larger <= 2 * smaller


@given(st.integers(1, 200), st.sets(st.integers(1, 200), max_size=8), st.data())
def test_every_batch_gets_the_smallest_graph_that_holds_it(
    maximum: int, given_sizes: set[int], data: st.DataObject
) -> None:
    sizes = {size for size in given_sizes if size <= maximum}
    plan = plan_captures(maximum, DIMS, sizes=sorted(sizes))
    captured = sorted(sizes) or default_sizes(maximum)
    rows = data.draw(st.integers(1, maximum))
    graph = plan.graph_for(rows, KEY)
    fitting = [size for size in captured if size >= rows]
    assert (graph.rows if graph else None) == (fitting[0] if fitting else None)


def test_larger_graphs_come_first() -> None:
    assert [size.rows for size in plan_captures(8, DIMS).sizes] == [8, 4, 2, 1]


def test_preferred_sizes_are_captured_too() -> None:
    assert 6 in [size.rows for size in plan_captures(8, DIMS, preferred=(6,)).sizes]


def test_a_free_dimension_has_no_graph() -> None:
    assert not len(plan_captures(8, {"x": (-1,)}))


def test_other_shapes_have_no_graph() -> None:
    assert plan_captures(8, DIMS).graph_for(4, dims_key({"x": (3, 9)})) is None


def test_a_model_without_batches_has_one_graph() -> None:
    plan = plan_captures(0, DIMS)
    graph = plan.graph_for(0, KEY)
    assert graph is not None
    assert (len(plan), graph.rows) == (1, 0)


def test_a_graph_spec_is_exact_unless_it_has_a_lower_bound() -> None:
    exact, ranged = specs(
        "graph_spec { batch_size: 4 } graph_spec { batch_size: 16 graph_lower_bound { batch_size: 9 } }"
    )
    plan = plan_captures(16, DIMS, graph_specs=[exact, ranged])
    found = {rows: graph.rows if (graph := plan.graph_for(rows, KEY)) else None for rows in (1, 3, 4, 5, 8, 9, 16)}
    assert found == {1: None, 3: None, 4: 4, 5: None, 8: None, 9: 16, 16: 16}


def test_a_graph_spec_fixes_a_free_dimension() -> None:
    spec = specs('graph_spec { batch_size: 2 input { key: "x" value { dim: [ 7 ] } } }')
    plan = plan_captures(4, {"x": (-1,)}, graph_specs=spec)
    assert plan.graph_for(2, dims_key({"x": (7,)})) is not None
    assert plan.graph_for(2, dims_key({"x": (8,)})) is None


def test_a_plan_without_one_of_its_graphs_pads_to_none_in_its_place() -> None:
    plan = plan_captures(4, DIMS, sizes=(2, 4))
    small = plan.graph_for(1, KEY)
    assert small is not None
    left = plan.without(small)
    assert [size.rows for size in left.sizes] == [4]
    assert left.graph_for(1, KEY) is None


@pytest.mark.parametrize("rows", [0, 5])
def test_an_empty_plan_has_no_graphs(rows: int) -> None:
    assert CapturePlan(()).graph_for(rows, KEY) is None
