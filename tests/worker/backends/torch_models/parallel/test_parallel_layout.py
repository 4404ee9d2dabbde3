"""Which rank has which part, where pipelines are cut, how batches are split, and what failures mean."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.backends.torch.parallel.failures import ends_instance, first_failure
from isochrone.worker.backends.torch.parallel.layout import Layout, balanced_cuts, children_of, micro_batches
from isochrone.worker.backends.torch.parallel.messages import Failure

layouts = st.builds(Layout, st.integers(1, 5), st.integers(1, 5))


@given(layouts)
def test_every_rank_has_one_share_of_one_stage(layout: Layout) -> None:
    places = [(layout.stage_of(rank), layout.share_of(rank)) for rank in range(layout.ranks)]
    assert sorted(places) == [(stage, share) for stage in range(layout.pipeline) for share in range(layout.tensor)]
    assert [layout.rank_of(*place) for place in places] == list(range(layout.ranks))
    assert [rank for stage in range(layout.pipeline) for rank in layout.ranks_of(stage)] == list(range(layout.ranks))
    assert places[layout.answering_rank] == (layout.last_stage, 0)
    assert places[0] == (0, 0)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9), st.data())
def test_the_largest_stage_is_as_small_as_it_can_be(sizes: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(sizes)))
    cuts = balanced_cuts(sizes, stages)

    def largest(bounds: list[int] | tuple[int, ...]) -> int:
        return max(sum(sizes[child] for child in children_of(stage, bounds, len(sizes))) for stage in range(stages))

    assert cuts == sorted(set(cuts))
    assert len(cuts) == stages - 1
    assert [child for stage in range(stages) for child in children_of(stage, cuts, len(sizes))] == list(
        range(len(sizes))
    )
    assert all(len(children_of(stage, cuts, len(sizes))) for stage in range(stages))
    assert largest(cuts) == min(largest(each) for each in combinations(range(1, len(sizes)), stages - 1))


def test_equal_children_are_divided_equally() -> None:
    assert balanced_cuts([1] * 6, 3) == [2, 4]
    assert balanced_cuts([10, 1, 1, 10], 2) == [2]
    with pytest.raises(ValueError, match="3 stages of 2 children"):
        balanced_cuts([1, 1], 3)


@given(st.integers(0, 300), st.integers(1, 6), st.integers(0, 40))
def test_micro_batches_have_all_rows_and_differ_by_one_at_most(rows: int, stages: int, most: int) -> None:
    split = micro_batches(rows, stages, most)
    assert sum(split) == rows
    assert max(split) - min(split) <= 1
    if rows and stages > 1:
        assert min(split) >= 1
        assert len(split) == (-(-rows // most) if most else min(rows, stages))
    else:
        assert len(split) == 1


failures = st.builds(
    Failure,
    message=st.sampled_from(["one", "two"]),
    place=st.sampled_from(["a.py:1", "a.py:2"]),
    is_fatal=st.booleans(),
)


@given(layouts, st.data())
def test_an_instance_goes_on_only_if_whole_stages_failed_alike(layout: Layout, data: st.DataObject) -> None:
    failed = data.draw(st.dictionaries(st.integers(0, layout.ranks - 1), failures, min_size=1))
    alike = all(
        len({(each.message, each.place) for rank in layout.ranks_of(stage) if (each := failed.get(rank))}) <= 1
        and len([rank for rank in layout.ranks_of(stage) if rank in failed]) in (0, layout.tensor)
        for stage in range(layout.pipeline)
    )
    fatal = any(each.is_fatal for each in failed.values())
    assert ends_instance(layout, failed) == (fatal or not alike)
    first = first_failure(failed)
    assert first.is_fatal == all(each.is_fatal for each in failed.values())
