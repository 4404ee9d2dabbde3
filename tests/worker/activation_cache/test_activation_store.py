"""The store of key frames: limits of bytes and age, digests, what moves a key frame."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.protocol.messages import Plan
from isochrone.worker.activation_cache.cache import PLACE_FRAMES, ActivationCache, Hit
from isochrone.worker.activation_cache.keys import ActivationKey, activation_keys
from isochrone.worker.activation_cache.planes import Plane
from isochrone.worker.activation_cache.settings import SPATIAL, TEMPORAL

Array = np.ndarray[Any, Any]


def plane(level: float, seed: int = 0) -> Plane:
    pixels = 0.3 * np.random.default_rng(seed).random((8, 8)) + level
    return Plane(pixels.astype(np.float32).reshape(-1), 8, 8)


def key(name: str, scope: str = TEMPORAL, digest: str = "d") -> ActivationKey:
    return ActivationKey(scope, ("camera", name), digest, b"")


def outputs(value: float, size: int = 4) -> dict[str, Array]:
    return {"y": np.full(size, value, np.float32)}


def value(found: Hit | str) -> float | str:
    return found if isinstance(found, str) else float(found.frame.outputs["y"][0])


def cache(limit: int = 1 << 20, age: int = 100, similarity: float = 0.95, block: float = -1.0) -> ActivationCache:
    return ActivationCache(limit, age, similarity, block)


def test_a_similar_picture_of_the_same_key_is_found() -> None:
    store = cache()
    assert store.insert([key("a")], plane(0.1), outputs(1.0), 0, 5)
    assert value(store.find([key("a")], plane(0.1), 10)) == 1.0
    assert value(store.find([key("b")], plane(0.1), 10)) == "cold"
    assert value(store.find([key("a")], plane(0.1, seed=9), 10)) == "changed"


def test_a_local_change_has_its_own_reason() -> None:
    store = cache(similarity=-1.0, block=0.9)
    store.insert([key("a")], plane(0.1), outputs(1.0), 0, 5)
    assert value(store.find([key("a")], plane(0.1, seed=9), 10)) == "local"


def test_outputs_are_copies_that_nobody_can_change() -> None:
    store, given_outputs = cache(), outputs(1.0)
    store.insert([key("a")], plane(0.1), given_outputs, 0, 5)
    given_outputs["y"][:] = 2.0
    found = store.find([key("a")], plane(0.1), 1)
    assert isinstance(found, Hit)
    assert value(found) == 1.0
    assert not found.frame.outputs["y"].flags.writeable


def test_a_camera_has_one_key_frame_and_a_place_several() -> None:
    store, place = cache(), key("t", SPATIAL)
    for seed in range(PLACE_FRAMES + 1):
        store.insert([key("a"), place], plane(0.1, seed), outputs(seed), 0, 5)
    assert len(store) == PLACE_FRAMES
    assert value(store.find([key("a")], plane(0.1, 0), 1)) == "changed"
    assert value(store.find([key("a")], plane(0.1, PLACE_FRAMES), 1)) == PLACE_FRAMES
    assert value(store.find([place], plane(0.1, 0), 1)) == "changed"
    assert value(store.find([place], plane(0.1, 1), 1)) == 1.0


def test_a_key_frame_that_is_larger_than_the_cache_changes_nothing() -> None:
    store = cache(limit=8000)
    store.insert([key("a")], plane(0.1), outputs(1.0), 0, 5)
    assert not store.insert([key("a")], plane(0.1, 3), outputs(2.0, 10_000), 0, 5)
    assert value(store.find([key("a")], plane(0.1), 1)) == 1.0


def test_outputs_larger_than_the_cache_are_not_copied() -> None:
    store, large = cache(limit=8000), outputs(1.0, 4_000_000)
    tracemalloc.start()
    try:
        assert not store.insert([key("a")], plane(0.1), large, 0, 5)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_requests_with_large_parameters_hold_no_more_than_the_limit() -> None:
    store = cache(limit=200_000)
    tracemalloc.start()
    try:
        for index in range(300):
            text = f"{index}" * 50_000
            plan = Plan(
                "m", "", (("x", "UINT8", (1, 8, 8)),), None, {"camera": "\U0001f4f7" * 250 + text[:3], "t": text}
            )
            keys = activation_keys(plan, "d", (TEMPORAL,), ())
            assert store.insert(keys, plane(0.1), outputs(index), 0, 5)
        del plan, text, keys
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(store) > 20
    assert held < 1.2 * store.limit_bytes


def test_clear_leaves_nothing() -> None:
    store = cache()
    store.insert([key("a"), key("t", SPATIAL)], plane(0.1), outputs(1.0), 0, 5)
    store.clear()
    assert (len(store), store.bytes_used) == (0, 0)
    assert value(store.find([key("a")], plane(0.1), 1)) == "cold"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["find", "insert"]),
        st.integers(0, 3),  # camera
        st.integers(0, 2),  # place; 0: none
        st.sampled_from(["d1", "d2"]),
        st.integers(0, 3),  # picture
        st.integers(1, 400),  # size of the outputs
        st.integers(0, 60),  # time that passes
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, limit=st.integers(1, 20_000))
def test_limits_hold_whatever_happens(steps: list[tuple[str, int, int, str, int, int, int]], limit: int) -> None:
    """Never over the byte limit; no hit of another digest, camera and place, or picture; none past the age."""
    store, now, made = cache(limit), 0, 0
    facts: dict[float, tuple[int, int, str, int, int]] = {}
    for action, camera, place, digest, picture, size, passed in steps:
        now += passed
        keys = [key(str(camera), TEMPORAL, digest)]
        if place:
            keys.append(key(str(place), SPATIAL, digest))
        if action == "insert":
            made += 1
            facts[float(made)] = (camera, place, digest, picture, now)
            store.insert(keys, plane(0.1, picture), outputs(made, size), now, 1)
        else:
            found = store.find(keys, plane(0.1, picture), now)
            if isinstance(found, Hit):
                of_camera, of_place, of_digest, of_picture, born = facts[float(found.frame.outputs["y"][0])]
                assert of_digest == digest
                assert of_picture == picture
                assert now - born <= 100
                assert of_camera == camera or (place and of_place == place)
                assert found.scope == TEMPORAL or (place and of_place == place)
        assert store.bytes_used <= limit
        assert store.bytes_used == sum(frame.size for frame in store._frames)
        linked = {frame for frames in store._by_key.values() for frame in frames}
        assert linked == set(store._frames)


def test_slow_change_is_compared_with_what_was_computed() -> None:
    """1,000 small steps: each hit is as near to the key frame that answers it as the threshold says."""
    random = np.random.default_rng(4)
    start, end = random.random((24, 24)), random.random((24, 24))
    store, computed = cache(age=10**9), 0
    at: dict[float, Array] = {}
    for step in range(1000):
        pixels = (start * (1 - step / 999) + end * (step / 999)).astype(np.float32)
        seen = Plane(pixels.reshape(-1), 24, 24)
        found = store.find([key("a")], seen, step)
        if isinstance(found, str):
            computed += 1
            at[float(step)] = pixels
            store.insert([key("a")], seen, outputs(step), step, 1)
        else:
            assert found.similarity.mean >= 0.95
            # The distance to the computed picture stays that of one key frame, however many steps there were.
            assert np.abs(pixels - at[float(found.frame.outputs["y"][0])]).mean() < 0.12
    assert 3 <= computed <= 50
