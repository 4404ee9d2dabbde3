"""Which parameters of a request name a camera or a place, and what else is in a key."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument
from isochrone.protocol.messages import Plan
from isochrone.worker.activation_cache.keys import ActivationKey, activation_keys
from isochrone.worker.activation_cache.settings import SPATIAL, TEMPORAL

BOTH = (TEMPORAL, SPATIAL)
GRID = (5.0, 5.0, 30.0)


def keys(parameters: dict[str, Any], **changes: Any) -> list[ActivationKey]:
    picture = ("picture", changes.get("datatype", "UINT8"), changes.get("shape", (1, 8, 8, 3)))
    plan = Plan("m", "", (picture,), changes.get("outputs"), parameters)
    return activation_keys(plan, changes.get("digest", "d"), changes.get("scopes", BOTH), changes.get("grid", GRID))


def test_requests_without_a_camera_or_a_place_have_no_key() -> None:
    assert keys({}) == []
    assert keys({"other": 1}) == []
    assert keys({"pose": "1,2,3"}, grid=()) == []


def test_temporal_comes_before_spatial() -> None:
    assert [key.scope for key in keys({"tile": "18/1/2", "camera": "front"})] == [TEMPORAL, SPATIAL]
    assert [key.scope for key in keys({"tile": "18/1/2", "camera": "front"}, scopes=(SPATIAL,))] == [SPATIAL]
    assert [key.scope for key in keys({"tile": "18/1/2", "camera": "front"}, scopes=(TEMPORAL,))] == [TEMPORAL]


def test_the_header_of_an_agent_is_a_camera() -> None:
    assert keys({"x-agent-id": "robot-7"}) == keys({"camera": "robot-7"})
    assert keys({"x-agent-id": "robot-7", "camera": "left"}) == keys({"camera": "left"})


def test_poses_of_one_cell_are_one_place() -> None:
    assert keys({"pose": "12.5,3.0,90"}) == keys({"pose": "14.9, 0.1, 119.9"})
    assert keys({"pose": "12.5,3.0,90"}) != keys({"pose": "15.0,3.0,90"})
    assert keys({"pose": "-0.1,0,0"}) != keys({"pose": "0.1,0,0"})


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_a_cell_holds_its_poses(pose: list[float]) -> None:
    (key,) = keys({"pose": ",".join(map(repr, pose))})
    for number, size, cell in zip(pose, GRID, key.place[1:], strict=True):
        assert isinstance(cell, int)
        assert cell * size - 1e-6 <= number <= (cell + 1) * size + 1e-6


@pytest.mark.parametrize("pose", ["", "1,2", "1,2,3,4", "x,y,z", "nan,0,0", "inf,0,0", "1" * 300, True])
def test_a_malformed_pose_is_the_callers_mistake(pose: object) -> None:
    with pytest.raises(InvalidArgument, match="pose"):
        keys({"pose": pose})


@pytest.mark.parametrize("camera", ["", "x" * 257, True, 1.5, 1 << 64, -(1 << 70)])
def test_a_malformed_camera_is_the_callers_mistake(camera: object) -> None:
    with pytest.raises(InvalidArgument, match="camera"):
        keys({"camera": camera})


def test_everything_that_can_change_an_answer_is_in_the_key() -> None:
    front = keys({"camera": "front"})
    assert keys({"camera": "front", "binary_data_output": True}) == front
    assert keys({"camera": "front"}, digest="other") != front
    assert keys({"camera": "front"}, outputs=("y",)) != front
    assert keys({"camera": "front"}, shape=(1, 8, 9, 3)) != front
    assert keys({"camera": "front"}, shape=(1, 3, 8, 8)) != front
    assert keys({"camera": "front"}, datatype="FP32") != front
    assert keys({"camera": "front", "gain": 1}) != front
    assert keys({"camera": "front", "gain": 1}) != keys({"camera": "front", "gain": True})
    assert keys({"camera": "front", "gain": 1}) != keys({"camera": "front", "gain": 1.0})
    assert keys({"camera": "front", "gain": 1}) != keys({"camera": "front", "gain": "1"})
    assert keys({"camera": "front", "a": "b", "c": 1}) == keys({"c": 1, "camera": "front", "a": "b"})
    # Where a picture was taken changes no answer.
    assert keys({"camera": "front", "pose": "1,1,1"})[0] == front[0]


def test_a_key_has_a_bounded_size_whatever_the_parameters() -> None:
    for parameters in ({"text": "x" * 1_000_000}, {f"name {index}": index for index in range(10_000)}):
        (key,) = keys({"camera": "front", **parameters})
        assert len(pickle.dumps(key)) < 300
