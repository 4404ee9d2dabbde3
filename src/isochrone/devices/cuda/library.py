"""The CUDA driver through ctypes: libcuda.so.1, which every machine with NVIDIA's driver has.

Nothing is loaded before the first use: a process that forks after ``cuInit`` has children without a usable driver.
Each call pushes the device's primary context, which torch and onnxruntime use too, and pops it again, so that the
caller's thread keeps its own. Copies that a call waits for use a non-blocking stream of their own: on the default
stream they would wait for the models' kernels, and would break the capture of a CUDA graph in another thread.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import structlog

from isochrone.devices.cuda.interface import HANDLE_BYTES, CudaDriver, CudaError

log = structlog.get_logger(__name__)

LIBRARY = "libcuda.so.1"

# cuda.h
_SUCCESS = 0
_LAZY_ENABLE_PEER_ACCESS = 1
_STREAM_NON_BLOCKING = 1
_HOST_REGISTER_PORTABLE = 1
_ORDER_OF_STREAM = 1


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which the driver takes by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: how sources are read, and hints about places, of which there are none here."""

    _fields_ = (("order", ctypes.c_int), ("places", ctypes.c_int * 4), ("flags", ctypes.c_uint))


_ADDRESS = ctypes.c_uint64  # CUdeviceptr
_POINTER = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_FLAGS = ctypes.c_uint

#: Arguments of each function. The names with a version are those that cuda.h gives to programs.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_FLAGS,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDriverGetVersion": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_POINTER), ctypes.c_int),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(_POINTER),),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_ADDRESS), _IpcHandle, _FLAGS),
    "cuIpcCloseMemHandle": (_ADDRESS,),
    "cuMemGetAddressRange_v2": (ctypes.POINTER(_ADDRESS), ctypes.POINTER(_SIZE), _ADDRESS),
    "cuStreamCreate": (ctypes.POINTER(_POINTER), _FLAGS),
    "cuStreamSynchronize": (_POINTER,),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _ADDRESS, _SIZE, _POINTER),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _POINTER),
    "cuMemHostRegister_v2": (_POINTER, _SIZE, _FLAGS),
    "cuMemHostUnregister": (_POINTER,),
}
#: CUDA 13's call for many copies. Without it each copy is a call, which takes the interpreter's lock again: on a thread
#: beside a busy event loop that is 100 µs for each.
_MANY_COPIES = "cuMemcpyBatchAsync_v2"
#: Errors after which batches of copies are not tried again.
_REFUSALS = ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE")
_MANY_TYPES: tuple[Any, ...] = (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER)


class CudaLibrary(CudaDriver):
    """The driver of this machine. Any thread may use it."""

    def __init__(self, library: Any = None) -> None:
        """``library`` stands in for libcuda in tests."""
        try:
            self._library = ctypes.CDLL(LIBRARY) if library is None else library
            self._functions = {name: _function(self._library, name, types) for name, types in _FUNCTIONS.items()}
        except OSError as error:
            raise CudaError(LIBRARY, f"the driver's library cannot be loaded: {error}") from None
        except AttributeError as error:
            raise CudaError(LIBRARY, f"the driver is too old: {error}") from None
        try:
            self._functions[_MANY_COPIES] = _function(self._library, _MANY_COPIES, _MANY_TYPES)
        except AttributeError:
            pass
        self._lock = threading.Lock()
        #: Device → its primary context and our stream in it. Kept until the process ends, as frameworks do.
        self._contexts: dict[int, tuple[Any, Any]] = {}
        self._call("cuInit", 0)

    def version(self) -> int:
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value

    def device_count(self) -> int:
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def prepare(self, device: int) -> None:
        self._context(device)

    def open_handle(self, device: int, handle: bytes) -> int:
        address = _ADDRESS()
        given = _IpcHandle.from_buffer_copy(handle)
        with self._current(device):
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, _LAZY_ENABLE_PEER_ACCESS)
        return address.value

    def close_handle(self, device: int, address: int) -> None:
        with self._current(device):
            self._call("cuIpcCloseMemHandle", address)

    def allocation(self, device: int, address: int) -> tuple[int, int]:
        start, size = _ADDRESS(), _SIZE()
        with self._current(device):
            self._call("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(size), address)
        return start.value, size.value

    def copy_to_host(self, device: int, target: memoryview, source: int) -> None:
        if target.readonly:
            raise ValueError("expected a writable target")
        if target.nbytes:
            with self._current(device) as stream:
                self._call("cuMemcpyDtoHAsync_v2", host_address(target), source, target.nbytes, stream)
                self._call("cuStreamSynchronize", stream)

    def copy_from_host(self, device: int, target: int, source: memoryview) -> None:
        if source.nbytes:
            with self._current(device) as stream:
                self._call("cuMemcpyHtoDAsync_v2", target, host_address(source), source.nbytes, stream)
                self._call("cuStreamSynchronize", stream)

    def copy_on_device(self, device: int, target: int, source: int, size: int) -> None:
        if size:
            with self._current(device) as stream:
                self._call("cuMemcpyDtoDAsync_v2", target, source, size, stream)
                self._call("cuStreamSynchronize", stream)

    def start_copies(self, device: int, copies: Sequence[tuple[int, int, int]], stream: int) -> None:
        with self._current(device):
            if len(copies) > 1 and _MANY_COPIES in self._functions:
                try:
                    self._start_many(copies, stream)
                    return
                except KeyError:  # another thread was refused meanwhile
                    pass
                except CudaError as error:
                    if error.name not in _REFUSALS:
                        raise
                    # Copied again below: the same bytes.
                    self._functions.pop(_MANY_COPIES, None)
                    log.warning("the driver refuses batches of copies; rows are copied one by one", reason=str(error))
            for target, source, size in copies:
                self._call("cuMemcpyHtoDAsync_v2", target, source, size, stream)

    def _start_many(self, copies: Sequence[tuple[int, int, int]], stream: int) -> None:
        # Rows: targets, sources, sizes.
        rows = np.array(copies, np.uint64).T.copy()
        targets, sources, sizes = (row.ctypes.data for row in rows)
        # One set of attributes, from the first copy on.
        attributes, first = _CopyAttributes(order=_ORDER_OF_STREAM), _SIZE(0)
        their, since = ctypes.addressof(attributes), ctypes.addressof(first)
        self._call(_MANY_COPIES, targets, sources, sizes, len(copies), their, since, 1, stream)

    def register_host(self, device: int, address: int, size: int) -> None:
        with self._current(device):
            self._call("cuMemHostRegister_v2", address, size, _HOST_REGISTER_PORTABLE)

    def unregister_host(self, device: int, address: int) -> None:
        with self._current(device):
            self._call("cuMemHostUnregister", address)

    @contextmanager
    def _current(self, device: int) -> Iterator[Any]:
        """Makes the device's context current on this thread; gives the stream for copies."""
        context, stream = self._context(device)
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield stream
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(_POINTER()))

    def _context(self, device: int) -> tuple[Any, Any]:
        with self._lock:
            known = self._contexts.get(device)
            if known is not None:
                return known
            number, context, stream = ctypes.c_int(), _POINTER(), _POINTER()
            self._call("cuDeviceGet", ctypes.byref(number), device)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number.value)
            self._call("cuCtxPushCurrent_v2", context)
            try:
                self._call("cuStreamCreate", ctypes.byref(stream), _STREAM_NON_BLOCKING)
            finally:
                self._call("cuCtxPopCurrent_v2", ctypes.byref(_POINTER()))
            self._contexts[device] = context, stream
            return context, stream

    def _call(self, name: str, *arguments: Any) -> None:
        result = self._functions[name](*arguments)
        if result != _SUCCESS:
            raise CudaError(name, self._error_name(result))

    def _error_name(self, result: int) -> str:
        text = ctypes.c_char_p()
        if self._functions["cuGetErrorName"](result, ctypes.byref(text)) != _SUCCESS or text.value is None:
            return f"error {result}"
        return text.value.decode()


@functools.cache
def process_driver() -> CudaLibrary:
    """The driver, loaded by the first call. Raises ``CudaError``."""
    return CudaLibrary()


def _function(library: Any, name: str, types: tuple[Any, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = types, ctypes.c_int
    return function


def host_address(view: memoryview) -> int:
    """The address of a contiguous buffer. ctypes alone finds only that of a writable one."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)
