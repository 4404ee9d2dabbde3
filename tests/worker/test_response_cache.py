"""The response cache, against a plain model of an LRU, and its keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.protocol.messages import InferRequest, Parameters, Plan
from isochrone.worker.response_cache import ResponseCache, ResponseKey, accounted_bytes, response_key

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


def key(number: int, model: str = "m", version: str = "1") -> ResponseKey:
    return ResponseKey(model, version, number.to_bytes(32, "little"))


def floats(count: int) -> Tensors:
    return {"y": np.arange(count, dtype=np.float32)}


def texts(*elements: object) -> Tensors:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return {"text": array}


_keys = st.builds(key, st.integers(0, 9), st.sampled_from(["m", "n"]), st.sampled_from(["1", "2"]))
_operations = st.one_of(
    st.tuples(st.just("insert"), _keys, st.integers(0, 1500)),
    st.tuples(st.just("lookup"), _keys, st.just(0)),
    st.tuples(st.just("forget"), _keys, st.just(0)),
)


@settings(deadline=None)
@given(st.integers(0, 12_000), st.lists(_operations, max_size=60))
def test_behaves_as_an_lru_of_so_many_bytes(limit: int, operations: list[tuple[str, ResponseKey, int]]) -> None:
    cache = ResponseCache(limit)
    oracle: OrderedDict[ResponseKey, int] = OrderedDict()
    for operation, name, count in operations:
        if operation == "insert":
            size = accounted_bytes(floats(count))
            assert cache.insert(name, floats(count)) == (size <= limit)
            if size <= limit:
                oracle.pop(name, None)
                while sum(accounted_bytes(floats(kept)) for kept in oracle.values()) + size > limit:
                    oracle.popitem(last=False)
                oracle[name] = count
        elif operation == "lookup":
            found = cache.lookup(name)
            if name in oracle:
                oracle.move_to_end(name)
                assert found is not None
                np.testing.assert_array_equal(found["y"], floats(oracle[name])["y"])
            else:
                assert found is None
        else:
            gone = [kept for kept in oracle if kept[:2] == name[:2]]
            assert cache.forget(name.model_name, name.model_version) == len(gone)
            for kept in gone:
                del oracle[kept]
        assert len(cache) == len(oracle)
        assert cache.bytes_used == sum(accounted_bytes(floats(kept)) for kept in oracle.values())
        assert cache.bytes_used <= limit


def test_the_least_recently_used_goes_first() -> None:
    cache = ResponseCache(3 * accounted_bytes(floats(10)))
    for number in range(3):
        cache.insert(key(number), floats(10))
    assert cache.lookup(key(0)) is not None
    cache.insert(key(3), floats(10))
    assert [cache.lookup(key(number)) is not None for number in range(4)] == [True, False, True, True]
    assert cache.evictions == 1


def test_what_is_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = ResponseCache(accounted_bytes(floats(10)))
    assert cache.insert(key(1), floats(10))
    assert not cache.insert(key(2), floats(11))
    assert cache.lookup(key(1)) is not None


def test_a_response_too_large_leaves_an_older_one_of_its_key() -> None:
    cache = ResponseCache(accounted_bytes(floats(10)))
    cache.insert(key(1), floats(10))
    cache.insert(key(1), floats(1000))
    found = cache.lookup(key(1))
    assert found is not None
    assert len(found["y"]) == 10


def test_elements_of_bytes_are_counted() -> None:
    small, large = accounted_bytes(texts(b"a", b"b")), accounted_bytes(texts(b"a" * 1000, b"b"))
    assert large - small == 999
    assert small > 2 * 33


def test_what_is_kept_is_a_read_only_copy() -> None:
    cache = ResponseCache(1 << 20)
    given_tensors = floats(4)
    cache.insert(key(1), given_tensors)
    given_tensors["y"][:] = 9
    found = cache.lookup(key(1))
    assert found is not None
    assert found["y"].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="read-only"):
        found["y"][0] = 1
    del found["y"]
    assert cache.lookup(key(1)) is not None
    assert "y" in (cache.lookup(key(1)) or {})


def test_a_view_does_not_keep_the_batch_it_was_cut_from() -> None:
    batch = np.zeros((64, 8), dtype=np.float32)
    cache = ResponseCache(1 << 20)
    cache.insert(key(1), {"y": batch[3:4]})
    found = cache.lookup(key(1))
    assert found is not None
    assert found["y"].base is None


def test_elements_that_could_change_are_copied_too() -> None:
    cache = ResponseCache(1 << 20)
    element = bytearray(b"abc")
    cache.insert(key(1), texts(element, "é"))
    element[:] = b"xyz"
    found = cache.lookup(key(1))
    assert found is not None
    assert found["text"].tolist() == [b"abc", "é".encode()]


def test_forgetting_a_version_leaves_the_others() -> None:
    cache = ResponseCache(1 << 20)
    for version in ("1", "2"):
        for number in range(3):
            cache.insert(key(number, version=version), floats(1))
    assert cache.forget("m", "1") == 3
    assert cache.forget("m", "1") == 0
    assert len(cache) == 3
    assert cache.lookup(key(0, version="2")) is not None


def request(
    inputs: dict[str, tuple[str, Any]] | None = None,
    *,
    outputs: tuple[str, ...] | None = None,
    parameters: Parameters | None = None,
    request_id: str = "",
    **plan_fields: Any,
) -> InferRequest:
    given_inputs = inputs or {"a": ("FP32", np.array([[1, 2]], np.float32)), "b": ("BYTES", texts(b"x")["text"])}
    plan = Plan(
        "m",
        "",
        tuple((name, datatype, array.shape) for name, (datatype, array) in given_inputs.items()),
        outputs,
        parameters or {},
        **plan_fields,
    )
    return InferRequest(plan, request_id, {name: array for name, (_, array) in given_inputs.items()}, 1)


def key_of(given_request: InferRequest, model: str = "m", version: str = "1", digest: str = "d") -> ResponseKey:
    return response_key(given_request, model, version, digest)


@pytest.mark.parametrize(
    "other",
    [
        lambda: request(request_id="7f3a"),
        lambda: request(priority=1, timeout_ns=5),
        lambda: request(parameters={"binary_data_output": True}),
        # The order of sending says nothing.
        lambda: request({"b": ("BYTES", texts(b"x")["text"]), "a": ("FP32", np.array([[1, 2]], np.float32))}),
        # Nor does the layout in memory.
        lambda: request(
            {
                "a": ("FP32", np.array([[1], [2]], np.float32, order="F").T),
                "b": ("BYTES", texts("x")["text"]),
            }
        ),
    ],
)
def test_keys_are_equal_when_nothing_that_matters_differs(other: Callable[[], InferRequest]) -> None:
    assert key_of(other()) == key_of(request())


def test_keys_differ_when_anything_that_matters_differs() -> None:
    one = np.array([[1, 2]], np.float32)
    text = texts(b"x")["text"]
    keys = [
        key_of(request()),
        key_of(request(), model="n"),
        key_of(request(), version="2"),
        key_of(request(), digest="e"),
        key_of(request(outputs=())),
        key_of(request(outputs=("y",))),
        key_of(request(outputs=("y", "z"))),
        key_of(request(outputs=("z", "y"))),
        key_of(request(outputs=("y', 'z",))),
        key_of(request(parameters={"k": 1})),
        key_of(request(parameters={"k": True})),
        key_of(request(parameters={"k": 1.0})),
        key_of(request(parameters={"k": "1"})),
        key_of(request(parameters={"j": 1})),
        key_of(request({"a": ("FP32", one)})),
        key_of(request({"c": ("FP32", one), "b": ("BYTES", text)})),
        key_of(request({"a": ("FP32", one + 1), "b": ("BYTES", text)})),
        key_of(request({"a": ("FP32", one.T), "b": ("BYTES", text)})),
        key_of(request({"a": ("INT32", one.view(np.int32)), "b": ("BYTES", text)})),
        key_of(request({"a": ("FP32", one), "b": ("BYTES", texts(b"y")["text"])})),
    ]
    assert len({found.fingerprint for found in keys}) == len(keys)


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=4), min_size=3, max_size=3),
    st.lists(st.binary(max_size=4), min_size=3, max_size=3),
)
def test_elements_do_not_run_into_each_other(first: list[bytes], second: list[bytes]) -> None:
    keys = [key_of(request({"b": ("BYTES", texts(*elements)["text"])})) for elements in (first, second)]
    assert (keys[0] == keys[1]) == (first == second)


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("BF16", np.array([1, 2], ml_dtypes.bfloat16)),
        ("FP32", np.array(3, np.float32)),
        ("FP32", np.empty((0, 4), np.float32)),
        ("BOOL", np.array([True, False])),
        ("INT64", np.frombuffer(bytes(17), np.uint8)[1:].view(np.int64)),
    ],
)
def test_every_kind_of_array_has_a_key(datatype: str, array: Any) -> None:
    assert key_of(request({"a": (datatype, array)})) == key_of(request({"a": (datatype, array.copy())}))
