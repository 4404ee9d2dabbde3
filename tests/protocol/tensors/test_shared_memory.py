"""System shared memory: the stock client's regions, and that no name, offset or size reaches beyond them."""

from __future__ import annotations

import gc
import mmap
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.utils.shared_memory as client_memory
from hypothesis import given
from hypothesis import strategies as st
from tensor_strategies import fuzz, huge, outcome

from isochrone.errors import AlreadyExists, InvalidArgument, IsochroneError, NotFound, PayloadTooLarge
from isochrone.protocol.tensors import shared_memory
from isochrone.protocol.tensors.binary import from_binary
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions
from isochrone.protocol.tensors.system_memory import SharedMemoryRegion

PAGE = mmap.ALLOCATIONGRANULARITY
SHM = Path("/dev/shm")


@pytest.fixture
def key() -> Iterator[str]:
    """A key of this test process alone; whatever the test made under it is removed."""
    key = f"isochrone-test-{os.getpid()}"
    yield key
    (SHM / key).unlink(missing_ok=True)


@pytest.fixture
def regions() -> Iterator[SharedMemoryRegions]:
    regions = SharedMemoryRegions()
    yield regions
    regions.unregister()


def fill(key: str, data: bytes) -> None:
    (SHM / key).write_bytes(data)


def test_a_region_of_the_stock_client_is_read_and_written(key, regions):
    array = np.arange(64, dtype=np.float32)
    handle = client_memory.create_shared_memory_region("theirs", f"/{key}", array.nbytes * 2)
    try:
        client_memory.set_shared_memory_region(handle, [array])
        regions.register("x", f"/{key}", 0, array.nbytes * 2)
        view = regions.view("x", 0, array.nbytes)
        read = from_binary("x", "FP32", [8, 8], view)
        assert read.tolist() == array.reshape(8, 8).tolist()
        client_memory.set_shared_memory_region(handle, [array + 1])
        assert read[0, 0] == 1  # a view, not a copy
        regions.view("x", array.nbytes, array.nbytes)[:] = (array * 2).tobytes()
        answered = client_memory.get_contents_as_numpy(handle, np.float32, [64], array.nbytes)
        assert np.array_equal(answered, array * 2)
        del answered, read, view
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client_memory.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, PAGE + 7])
def test_offsets_count_from_the_regions_start(key, regions, offset):
    data = bytes(range(256)) * (2 * PAGE // 256)
    fill(key, data)
    regions.register("x", key, offset, 100)
    assert bytes(regions.view("x", 0, 100)) == data[offset : offset + 100]
    assert bytes(regions.view("x", 10, 5)) == data[offset + 10 : offset + 15]
    assert bytes(regions.view("x", 100, 0)) == b""


def test_status_tells_what_was_registered(key, regions):
    fill(key, bytes(64))
    assert regions.status() == []
    regions.register("x", key, 8, 16)
    regions.register("y", f"/{key}", 0, 64)
    x = SharedMemoryRegion("x", key, 8, 16)
    assert regions.status("x") == [x]
    assert regions.status() == [x, SharedMemoryRegion("y", f"/{key}", 0, 64)]
    regions.unregister("x")
    assert [region.name for region in regions.status()] == ["y"]
    with pytest.raises(NotFound, match="Unable to find system shared memory region: 'x'"):
        regions.status("x")


def test_a_taken_name_is_told_in_tritons_words(key, regions):
    fill(key, bytes(64))
    regions.register("x", key, 0, 16)
    with pytest.raises(AlreadyExists, match=r"^shared memory region 'x' already in manager$"):
        regions.register("x", key, 0, 32)
    assert regions.status("x")[0].byte_size == 16
    regions.unregister("x")
    regions.register("x", key, 0, 32)


def test_unregistering_the_unknown_is_no_error(regions):
    regions.unregister("never")
    regions.unregister()


def test_views_outlive_their_region(key, regions):
    fill(key, b"abcdefgh")
    regions.register("x", key, 0, 8)
    array = from_binary("x", "UINT8", [8], regions.view("x", 0, 8))
    regions.unregister("x")
    (SHM / key).unlink()
    gc.collect()
    assert array.tobytes() == b"abcdefgh"
    array[0] = 0
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'x'"):
        regions.view("x", 0, 8)


def test_arrays_that_hold_no_buffer_outlive_their_region_too(key, regions):
    fill(key, b"abcdefgh")
    regions.register("x", key, 0, 8)
    # numpy takes the address here and gives the buffer back, so that closing the mapping would not be refused.
    array = np.ndarray(8, np.uint8, buffer=regions.view("x", 0, 8))
    regions.unregister()
    gc.collect()
    assert array.tobytes() == b"abcdefgh"
    del array
    assert mappings(key) == 0


def mappings(key: str) -> int:
    return Path("/proc/self/maps").read_text().count(f"/dev/shm/{key}")


def test_nothing_stays_open(key, regions):
    fill(key, bytes(64))
    before = len(os.listdir("/proc/self/fd"))
    regions.register("x", key, 0, 64)
    view = regions.view("x", 0, 8)
    assert mappings(key) == 1
    regions.unregister()
    assert mappings(key) == 1
    del view
    assert mappings(key) == 0
    for _ in range(3):
        regions.register("x", key, 0, 64)
        regions.unregister("x")
        with pytest.raises(InvalidArgument):
            regions.register("x", key, 0, 65)
    assert mappings(key) == 0
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 17), (16, 1), (17, 0), (-1, 2), (0, -1), (2**63, 1), (1, 2**64), (0, True), (0.0, 1)]
)
def test_views_stay_inside_their_region(key, regions, offset, size):
    fill(key, bytes(64))
    regions.register("x", key, 8, 16)
    with pytest.raises(InvalidArgument, match=r"Invalid offset .* region: 'x': asked for .* the region has 16"):
        regions.view("x", offset, size)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 65), (64, 1), (65, 1), (2**62, 2**62), (0, 2**64), (0, 0), (-8, 8), (0, -1), ("0", 8)]
)
def test_regions_stay_inside_their_memory(key, regions, offset, size):
    fill(key, bytes(64))
    with pytest.raises(InvalidArgument, match="failed to register shared memory region 'x': "):
        regions.register("x", key, offset, size)
    assert regions.status() == []


def test_a_client_that_truncates_is_told_so(key, regions):
    fill(key, bytes(2 * PAGE))
    regions.register("x", key, 16, 2 * PAGE - 16)
    os.truncate(SHM / key, 32)
    assert bytes(regions.view("x", 0, 16)) == bytes(16)
    with pytest.raises(InvalidArgument, match=r"region 'x': asked for 17 bytes at offset 0, .* ends 16 bytes after"):
        regions.view("x", 0, 17)
    os.truncate(SHM / key, 0)
    with pytest.raises(InvalidArgument, match="ends 0 bytes after"):
        regions.view("x", 0, 16)


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "/.", "..", "/..", "../etc/passwd", "a/b", "//a", "/a/../b", "a..b", "a b", "a\n", "a\0", "é",
     "a" * 251, None, 3, b"abc"],
)  # fmt: skip
def test_keys_are_plain_names(regions, key):
    with pytest.raises(InvalidArgument, match=r"failed to register shared memory region 'x': key .* must be"):
        regions.register("x", key, 0, 8)


@pytest.mark.parametrize("name", ["", None, 3, ["x"]])
def test_a_region_needs_a_name(regions, name):
    with pytest.raises(InvalidArgument, match="expected a name"):
        regions.register(name, "key", 0, 8)


@pytest.mark.parametrize("name", ["", "y", None, 3, ["x"], {}])
def test_views_of_what_is_not_registered(regions, name):
    with pytest.raises(NotFound, match="Unable to find shared memory region: "):
        regions.view(name, 0, 8)


def test_links_are_not_followed(key, regions, tmp_path):
    target = tmp_path / "secret"
    target.write_bytes(bytes(64))
    (SHM / key).symlink_to(target)
    with pytest.raises(InvalidArgument, match=f"Unable to open shared memory region: '{key}'"):
        regions.register("x", key, 0, 8)


def test_pipes_and_folders_are_refused_without_waiting(key, regions):
    os.mkfifo(SHM / key)
    with pytest.raises(InvalidArgument, match=f"'{key}' is not shared memory but another kind of file"):
        regions.register("x", key, 0, 8)
    (SHM / key).unlink()
    (SHM / key).mkdir()
    try:
        with pytest.raises(InvalidArgument, match="Is a directory"):
            regions.register("x", key, 0, 8)
    finally:
        (SHM / key).rmdir()


def test_memory_that_is_not_there(key, regions):
    with pytest.raises(InvalidArgument, match=f"Unable to open shared memory region: '{key}': No such file"):
        regions.register("x", key, 0, 8)


def test_the_number_of_regions_is_limited(key, regions, monkeypatch):
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 2)
    fill(key, bytes(64))
    regions.register("x", key, 0, 8)
    regions.register("y", key, 0, 8)
    with pytest.raises(PayloadTooLarge, match="2 regions are registered, which is the limit"):
        regions.register("z", key, 0, 8)


wild = st.integers(-10, 80) | st.sampled_from([2**31, 2**63, -(2**63)]) | huge | st.none() | st.floats()


@fuzz
@given(st.lists(st.tuples(wild, wild), max_size=5), wild, wild)
def test_wild_numbers_raise_only_our_errors(asked, offset, size):
    key = f"isochrone-test-{os.getpid()}-wild"
    fill(key, bytes(range(64)))
    regions = SharedMemoryRegions()
    try:
        regions.register("x", key, offset, size)
        for view_offset, view_size in asked:
            view = outcome(regions.view, "x", view_offset, view_size)
            assert isinstance(view, IsochroneError) or len(view) == view_size
            del view
    except IsochroneError:
        assert regions.status() == []
    finally:
        regions.unregister()
        (SHM / key).unlink()
