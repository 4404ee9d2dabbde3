"""Loads a torch model onto a GPU: checks that it fits, moves it, captures its graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.devices import losses
from isochrone.devices.gpu_facts import explain_missing_gpu
from isochrone.devices.loads import loading
from isochrone.errors import ConfigError, IsochroneError, Unavailable
from isochrone.models.instances import configured_instances
from isochrone.worker.backends import parameters
from isochrone.worker.backends.devices.errors import device_error
from isochrone.worker.backends.devices.failed_frames import forget_frames
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, MemoryLedger, Reservation, ledger_of
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.torch.error_text import compiler_error_line
from isochrone.worker.backends.torch.gpu.compile_workers import COMPILE_WORKERS
from isochrone.worker.backends.torch.gpu.device import CudaDevice
from isochrone.worker.backends.torch.gpu.executable import SLOTS, GpuExecutable
from isochrone.worker.backends.torch.gpu.graphs import GraphCapture, is_out_of_memory
from isochrone.worker.backends.torch.gpu.module_call import ModuleCall
from isochrone.worker.backends.torch.gpu.settings import GpuSettings, gpu_settings
from isochrone.worker.backends.torch.gpu.slots import tensor_bytes
from isochrone.worker.backends.torch.gpu.sm_partitions import PARTITIONS
from isochrone.worker.backends.torch.modes import run_mode
from isochrone.worker.backends.torch.packages import compiled_target

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import Executable, LoadContext
    from isochrone.worker.backends.torch.files import LoadedFile
    from isochrone.worker.backends.torch.gpu.device import Device
    from isochrone.worker.backends.torch.gpu.graphs import Graphs

log = structlog.get_logger(__name__)

_COMPILE = 'parameters["compile"]'


def gpu_of(context: LoadContext, torch: Any) -> int | None:
    """The GPU of an instance; None: it runs on the CPU. Raises if the configuration asks for one that is not usable.

    ``KIND_AUTO`` is the first GPU where torch can use one.
    """
    group = configured_instances(context.config)[context.instance].group if context.config.instance_group else None
    if context.gpu is None:
        automatic = group is None or group.kind == group.KIND_AUTO
        return 0 if automatic and torch.cuda.is_available() else None
    if not torch.cuda.is_available() or context.gpu >= torch.cuda.device_count():
        reason = explain_missing_gpu(context.gpu, "torch")
        expected = f"a GPU that torch can use, but {reason}. To run on the CPU, change it to KIND_CPU"
        raise ConfigError(parameters.where(context), "instance_group.kind", expected, f"GPU {context.gpu}")
    return context.gpu


@contextmanager
def room_for_package(context: LoadContext, torch: Any, path: Path, gpu: int) -> Iterator[None]:
    """An AOTInductor package is loaded inside: torch copies its weights to the GPU at once. Raises if they do not fit.

    Other files are loaded to the CPU first, and nothing is reserved.
    """
    if path.suffix != ".pt2" or compiled_target(path) is None:
        yield
        return
    if mode := gpu_settings(context).compile_mode:
        parameters.reject(context, "compile", "none for an AOTInductor package, which is compiled", mode)
    with loading(), room_for_weights(context, CudaDevice(torch, gpu), path.stat().st_size):
        yield


@contextmanager
def room_for_weights(context: LoadContext, device: Device, size: int) -> Iterator[None]:
    settings = gpu_settings(context)
    needs = {Holding.WEIGHTS: size}
    reservation = _ledger(device).reserve(
        _account(context), needs, device.memory, settings.spare_bytes, context.gpu_share
    )
    try:
        yield
    except BaseException as error:
        forget_frames(error)
        device.free_cached()
        if isinstance(error, IsochroneError) or not is_out_of_memory(error):
            raise
        raise _does_not_fit(context, device, error) from None
    finally:
        # What was loaded shows in the device's own figures.
        reservation.release()


def load_on_gpu(
    context: LoadContext,
    torch: Any,
    file: LoadedFile,
    arguments: tuple[list[str], list[str]],
    gpu: int,
    path: Path,
) -> Executable:
    """Loads a file's model onto a GPU. The caller is inside ``devices.loads.loading``."""
    settings = gpu_settings(context)
    device = CudaDevice(torch, gpu, busy_wait=settings.busy_wait, is_reserved=settings.is_reserved)
    if settings.reserved_sms:
        try:
            wrap = torch.cuda.ExternalStream
            PARTITIONS.divide(context, gpu, settings.reserved_sms, wrap, is_own=settings.is_reserved)
        except BaseException:
            file.release()
            raise
    return load_on_device(context, torch, file, arguments, device, settings, path.stat().st_size)


def load_on_device(
    context: LoadContext,
    torch: Any,
    file: LoadedFile,
    arguments: tuple[list[str], list[str]],
    device: Device,
    settings: GpuSettings,
    file_bytes: int,
) -> Executable:
    """Loads a module onto a device. If it raises, the device's memory is free again."""
    account = _account(context)
    needs = {
        # The weights of a package are on the device already.
        Holding.WEIGHTS: 0 if file.to_device is None else _weight_bytes(file, settings.dtype),
        Holding.SLOTS: (SLOTS + 1) * sum(tensor_bytes(context).values()),
    }
    reservation: Reservation | None = None
    executable: GpuExecutable | None = None
    module: Any = None
    call: Any = None
    try:
        reservation = _ledger(device).reserve(account, needs, device.memory, settings.spare_bytes, context.gpu_share)
        if file.to_device is None:
            reservation.record(Holding.WEIGHTS, file_bytes)
            module = file.call
        else:
            module = file.to_device(device.name)
            if settings.dtype:
                module = module.to(getattr(torch, settings.dtype))
        # Each as soon as the device shows it: captures and compilations take minutes, in which others are loaded.
        reservation.settle(Holding.WEIGHTS)
        mode = run_mode(context, torch)
        call = ModuleCall(context, torch, module, arguments, settings.dtype, mode)
        executable = GpuExecutable(context, torch, call, device, settings, mode)
        executable.closed = reservation.release
        executable.reserve_slots()
        reservation.settle(Holding.SLOTS)
        with COMPILE_WORKERS.needed() if settings.compile_mode else nullcontext():
            executable.graphs = _captured(executable, call, context, settings, device, mode)
        if executable.graphs is not None:
            executable.captured_graphs = len(executable.graphs)
            reservation.record(Holding.GRAPHS, executable.graphs.size)
        return executable
    except BaseException as error:
        # The file still has a package: it goes below, with the lock that dropping one requires.
        module = call = None
        forget_frames(error)
        file.release()
        lost = device_error(error)
        if lost is not None:
            losses.record(device.name, lost)
        try:
            if executable is not None:
                executable.close()
            device.release_streams()
            gc.collect()
            device.free_cached()
        except Exception as further:  # of a device that is lost
            log.warning("a failed load could not be undone", model=str(account), error=str(further))
        finally:
            if reservation is not None:
                reservation.release()
        if lost is not None:
            raise DeviceLost(str(account), lost) from None
        if isinstance(error, IsochroneError) or not is_out_of_memory(error):
            raise
        raise _does_not_fit(context, device, error) from None


def _does_not_fit(context: LoadContext, device: Device, error: BaseException) -> Unavailable:
    return Unavailable(f"{_account(context)} does not fit on {device.name}: {str(error).partition('. ')[0]}")


def _account(context: LoadContext) -> Account:
    return Account(context.model_name, context.model_version, context.instance)


def _ledger(device: Device) -> MemoryLedger:
    return ledger_of(device.name)


def _captured(
    executable: GpuExecutable,
    call: ModuleCall,
    context: LoadContext,
    settings: GpuSettings,
    device: Device,
    mode: Callable[[], Any],
) -> Graphs | None:
    if not len(settings.plan):
        if settings.graphs:
            raise ConfigError(
                parameters.where(context),
                "optimization.cuda.graphs",
                "false, or input dims without -1, or a graph_spec that fixes them",
                "true",
            )
        return None

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        return call.run_compiled(inputs) if settings.compile_mode else call.run(inputs)

    def compile_for(inputs: Mapping[str, Any]) -> None:
        try:
            call.compile(inputs, settings.compile_mode)
        except IsochroneError:
            raise
        except Exception as error:
            if device_error(error) is not None or is_out_of_memory(error):
                raise
            expected = "none, or a model that torch can compile here"
            said = f"{settings.compile_mode}; torch: {compiler_error_line(error)}"
            raise ConfigError(parameters.where(context), _COMPILE, expected, said) from error

    def make_input(name: str, shape: tuple[int, ...]) -> Any:
        return call.new_input(name, shape, device.name)

    names = [name for name, _ in call.outputs]
    prepare = compile_for if settings.compile_mode else None
    stream = executable.compute_stream
    capture = GraphCapture(device, run, make_input, names, executable.slots, stream, mode, prepare)
    required_by = None
    if settings.graphs:
        required_by = ("optimization.cuda.graphs", "true")
    elif settings.compile_mode:  # what is compiled runs in graphs alone
        required_by = (_COMPILE, settings.compile_mode)
    return capture.capture(
        settings.plan,
        label=f"model '{context.model_name}' version {context.model_version}",
        where=parameters.where(context),
        required_by=required_by,
        budget=settings.graph_bytes,
    )


def _weight_bytes(file: LoadedFile, dtype: str) -> int:
    width = {"": 0, "float16": 2, "bfloat16": 2, "float32": 4}[dtype]
    module: Any = file.call
    # Constants keep their type.
    return file.constant_bytes + sum(
        int(tensor.numel() * (width if width and tensor.is_floating_point() else tensor.element_size()))
        for tensor in (*module.parameters(), *module.buffers())
    )
