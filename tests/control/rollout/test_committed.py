"""What the committed epoch assigns to a worker, and whether the worker has it."""

from __future__ import annotations

from isochrone.control.rollout.committed import assigned, has_committed
from isochrone.control.state.records import Assignment, EpochRecord, PlacementRecord


def test_only_the_models_of_its_pool_are_assigned_to_a_worker() -> None:
    mine, other = Assignment("2", pools=("cpu", "edge")), Assignment("1", pools=("gpu",))
    assert assigned(EpochRecord(3, {"m": mine, "n": other}), "cpu") == {"m": mine}
    assert assigned(EpochRecord(0), "cpu") == {}


def test_in_a_planned_pool_the_placement_record_decides() -> None:
    mine, theirs = Assignment("1", pools=("cpu",)), Assignment("1", pools=("cpu",))
    epoch = EpochRecord(3, {"m": mine, "n": theirs})
    placements = {"cpu": PlacementRecord({"m": ("w1",), "n": ("w2",)})}
    assert assigned(epoch, "cpu", "w1", placements) == {"m": mine}
    assert assigned(epoch, "cpu", "w3", placements) == {}


def test_a_worker_has_what_is_committed_with_its_version_and_digest() -> None:
    models = {"m": Assignment("2", "abc"), "n": Assignment("1")}
    assert has_committed({("m", "2"): "abc", ("n", "1"): "whatever"}, models)
    # A worker without digests is trusted; the digest of a Triton's configuration is not comparable with ours.
    assert has_committed({("m", "2"): "", ("n", "1"): ""}, models)
    assert has_committed({("m", "2"): "abc"}, {"m": Assignment("2", "config-1")})
    assert not has_committed({("m", "2"): "other", ("n", "1"): ""}, models)
    assert not has_committed({("m", "1"): "abc", ("n", "1"): ""}, models)
    assert not has_committed({}, models)
