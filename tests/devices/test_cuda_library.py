"""The layer on libcuda, against a library that records its calls."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.cuda.library import CudaLibrary, host_address

CONTEXT, STREAM, ADDRESS = 0x10, 0x20, 0x7F00_0000_0000


class Function:
    argtypes: Any = None
    restype: Any = None

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name

    def __call__(self, *arguments: Any) -> int:
        return self._library.called(self._name, arguments)


class Library:
    """libcuda with two devices. ``results``: what a function returns instead of success."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results: dict[str, int] = {}
        #: What calls for many copies were given: copies, attributes, from which copy on, sets of attributes, stream.
        self.batches: list[Any] = []
        self.depth = 0

    def __getattr__(self, name: str) -> Function:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = Function(self, name)
        setattr(self, name, function)
        return function

    def called(self, name: str, arguments: tuple[Any, ...]) -> int:
        # byref() objects are shown as None: they are where results go.
        plain = tuple(each if isinstance(each, int) else getattr(each, "value", None) for each in arguments)
        self.calls.append((name, *plain))
        if name in self.results:
            return self.results[name]
        outputs: dict[str, tuple[int, ...]] = {
            "cuDeviceGetCount": (2,),
            "cuDriverGetVersion": (13020,),
            "cuDeviceGet": (7,),
            "cuDevicePrimaryCtxRetain": (CONTEXT,),
            "cuStreamCreate": (STREAM,),
            "cuIpcOpenMemHandle_v2": (ADDRESS,),
            "cuMemGetAddressRange_v2": (ADDRESS - 256, 1024),
        }
        for target, value in zip(arguments, outputs.get(name, ()), strict=False):
            target._obj.value = value
        if name == "cuGetErrorName":
            names = {201: b"CUDA_ERROR_INVALID_CONTEXT", 801: b"CUDA_ERROR_NOT_SUPPORTED"}
            arguments[1]._obj.value = names.get(arguments[0])
        if name == "cuIpcOpenMemHandle_v2":
            self.handle = bytes(arguments[1].reserved)
        if name == "cuMemcpyBatchAsync_v2":
            self.batches.append(_batch(*arguments))
        self.depth += {"cuCtxPushCurrent_v2": 1, "cuCtxPopCurrent_v2": -1}.get(name, 0)
        return 0

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


def _batch(
    targets: int, sources: int, sizes: int, count: int, attributes: int, since: int, sets: int, stream: int
) -> Any:
    lists = [list((ctypes.c_uint64 * count).from_address(each)) for each in (targets, sources, sizes)]
    given = tuple((ctypes.c_int * 6).from_address(attributes))
    return list(zip(*lists, strict=True)), given, ctypes.c_size_t.from_address(since).value, sets, stream


def test_a_handle_is_passed_by_value_in_the_device_s_context() -> None:
    library = Library()
    driver = CudaLibrary(library)
    assert (driver.device_count(), driver.version()) == (2, 13020)
    library.calls.clear()
    handle = bytes(range(64))
    assert driver.open_handle(1, handle) == ADDRESS
    assert library.handle == handle
    assert library.names() == [
        *("cuDeviceGet", "cuDevicePrimaryCtxRetain"),
        *("cuCtxPushCurrent_v2", "cuStreamCreate", "cuCtxPopCurrent_v2"),
        *("cuCtxPushCurrent_v2", "cuIpcOpenMemHandle_v2", "cuCtxPopCurrent_v2"),
    ]
    library.calls.clear()
    assert driver.allocation(1, ADDRESS) == (ADDRESS - 256, 1024)
    driver.close_handle(1, ADDRESS)
    # The context and the stream are made once.
    assert library.names() == [
        *("cuCtxPushCurrent_v2", "cuMemGetAddressRange_v2", "cuCtxPopCurrent_v2"),
        *("cuCtxPushCurrent_v2", "cuIpcCloseMemHandle", "cuCtxPopCurrent_v2"),
    ]


def test_copies_use_a_stream_of_their_own_and_wait_for_it() -> None:
    library = Library()
    driver = CudaLibrary(library)
    target, source = bytearray(16), b"0123456789abcdef"
    driver.copy_to_host(0, memoryview(target), ADDRESS)
    driver.copy_from_host(0, ADDRESS, memoryview(source))
    driver.copy_on_device(0, ADDRESS, ADDRESS + 64, 32)
    copies = [call for call in library.calls if call[0].startswith(("cuMemcpy", "cuStreamS"))]
    done = ("cuStreamSynchronize", STREAM)
    assert copies == [
        ("cuMemcpyDtoHAsync_v2", host_address(memoryview(target)), ADDRESS, 16, STREAM),
        done,
        ("cuMemcpyHtoDAsync_v2", ADDRESS, host_address(memoryview(source)), 16, STREAM),
        done,
        ("cuMemcpyDtoDAsync_v2", ADDRESS, ADDRESS + 64, 32, STREAM),
        done,
    ]
    library.calls.clear()
    driver.copy_to_host(0, memoryview(bytearray()), ADDRESS)
    driver.copy_from_host(0, ADDRESS, memoryview(b""))
    driver.copy_on_device(0, ADDRESS, ADDRESS, 0)
    assert library.calls == []
    with pytest.raises(ValueError, match="writable"):
        driver.copy_to_host(0, memoryview(source), ADDRESS)


def test_pages_of_the_host() -> None:
    library = Library()
    driver = CudaLibrary(library)
    driver.register_host(0, 4096, 8192)
    driver.unregister_host(0, 4096)
    assert ("cuMemHostRegister_v2", 4096, 8192, 1) in library.calls
    assert ("cuMemHostUnregister", 4096) in library.calls


def test_copies_on_another_stream_are_started_by_one_call() -> None:
    library = Library()
    driver = CudaLibrary(library)
    driver.start_copies(0, [(ADDRESS, 4096, 64)], 0x99)
    assert ("cuMemcpyHtoDAsync_v2", ADDRESS, 4096, 64, 0x99) in library.calls
    copies = [(ADDRESS + 64 * number, 4096 + 128 * number, 64 + number) for number in range(5)]
    driver.start_copies(0, copies, 0x99)
    assert library.batches == [(copies, (1, 0, 0, 0, 0, 0), 0, 1, 0x99)]
    assert "cuStreamSynchronize" not in library.names()
    assert library.depth == 0
    driver.start_copies(0, [], 0x99)
    assert len(library.batches) == 1


def test_a_driver_without_the_call_for_many_copies_gets_one_for_each() -> None:
    class Older(Library):
        def __getattr__(self, name: str) -> Function:
            if name == "cuMemcpyBatchAsync_v2":
                raise AttributeError(name)
            return super().__getattr__(name)

    refusing = Library()
    refusing.results["cuMemcpyBatchAsync_v2"] = 801
    copies = [(ADDRESS, 4096, 64), (ADDRESS + 64, 8192, 64)]
    for library in (Older(), refusing):
        driver = CudaLibrary(library)
        driver.start_copies(0, copies, 0x99)
        driver.start_copies(0, copies, 0x99)
        single = [call[1:4] for call in library.calls if call[0] == "cuMemcpyHtoDAsync_v2"]
        assert single == copies * 2
    assert refusing.names().count("cuMemcpyBatchAsync_v2") == 1


def test_an_error_has_the_driver_s_name_and_leaves_no_context() -> None:
    library = Library()
    driver = CudaLibrary(library)
    library.results["cuIpcOpenMemHandle_v2"] = 201
    with pytest.raises(CudaError, match=r"^cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_CONTEXT$"):
        driver.open_handle(0, bytes(64))
    assert library.depth == 0
    library.results["cuIpcOpenMemHandle_v2"] = 9999
    with pytest.raises(CudaError, match="error 9999"):
        driver.open_handle(0, bytes(64))


def test_a_device_whose_context_fails_can_be_tried_again() -> None:
    library = Library()
    driver = CudaLibrary(library)
    library.results["cuDevicePrimaryCtxRetain"] = 2
    with pytest.raises(CudaError, match="cuDevicePrimaryCtxRetain"):
        driver.close_handle(0, ADDRESS)
    del library.results["cuDevicePrimaryCtxRetain"]
    driver.close_handle(0, ADDRESS)


def test_a_driver_that_does_not_start() -> None:
    library = Library()
    library.results["cuInit"] = 100
    with pytest.raises(CudaError, match="cuInit: error 100"):
        CudaLibrary(library)


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CudaError, match=r"libcuda\.so\.1: the driver's library cannot be loaded: libcuda"):
        CudaLibrary()


def test_a_driver_without_a_function() -> None:
    class Old(Library):
        def __getattr__(self, name: str) -> Function:
            if name == "cuMemHostRegister_v2":
                raise AttributeError(f"undefined symbol: {name}")
            return super().__getattr__(name)

    with pytest.raises(CudaError, match="too old: undefined symbol: cuMemHostRegister_v2"):
        CudaLibrary(Old())
