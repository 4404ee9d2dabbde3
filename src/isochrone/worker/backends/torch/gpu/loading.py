"""Loads a torch model onto a GPU: checks that it fits, moves it, captures its graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.devices.gpu_facts import explain_missing_gpu
from isochrone.devices.loads import loading
from isochrone.errors import ConfigError, IsochroneError, Unavailable
from isochrone.models.instances import configured_instances
from isochrone.worker.backends import parameters
from isochrone.worker.backends.failed_frames import forget_frames
from isochrone.worker.backends.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.torch.gpu.compile_workers import COMPILE_WORKERS
from isochrone.worker.backends.torch.gpu.device import CudaDevice
from isochrone.worker.backends.torch.gpu.executable import SLOTS, GpuExecutable
from isochrone.worker.backends.torch.gpu.graphs import GraphCapture, is_out_of_memory
from isochrone.worker.backends.torch.gpu.module_call import ModuleCall
from isochrone.worker.backends.torch.gpu.settings import GpuSettings, gpu_settings
from isochrone.worker.backends.torch.gpu.slots import tensor_bytes
from isochrone.worker.backends.torch.modes import run_mode

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import Executable, LoadContext
    from isochrone.worker.backends.torch.files import LoadedFile
    from isochrone.worker.backends.torch.gpu.device import Device
    from isochrone.worker.backends.torch.gpu.graphs import Graphs


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


def load_on_gpu(
    context: LoadContext,
    torch: Any,
    file: LoadedFile,
    arguments: tuple[list[str], list[str]],
    gpu: int,
    path: Path,
) -> Executable:
    settings = gpu_settings(context)
    device = CudaDevice(torch, gpu, busy_wait=settings.busy_wait)
    with loading():
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
    account = Account(context.model_name, context.model_version, context.instance)
    needs = {
        # The weights of a package are on the device already.
        Holding.WEIGHTS: 0 if file.to_device is None else _weight_bytes(file.call, settings.dtype),
        Holding.SLOTS: (SLOTS + 1) * sum(tensor_bytes(context).values()),
    }
    reservation = ledger_of(device.name).reserve(account, needs, device.memory, settings.spare_bytes, context.gpu_share)
    executable: GpuExecutable | None = None
    module: Any = None
    call: Any = None
    try:
        if file.to_device is None:
            reservation.record(Holding.WEIGHTS, file_bytes)
            module = file.call
        else:
            module = file.to_device(device.name)
            if settings.dtype:
                module = module.to(getattr(torch, settings.dtype))
        mode = run_mode(context, torch)
        call = ModuleCall(context, torch, module, arguments, settings.dtype, mode)
        executable = GpuExecutable(context, torch, call, device, settings, mode)
        executable.closed = reservation.release
        executable.reserve_slots()
        with COMPILE_WORKERS.needed() if settings.compile_mode else nullcontext():
            executable.graphs = _captured(executable, call, context, settings, device, mode)
        if executable.graphs is not None:
            reservation.record(Holding.GRAPHS, executable.graphs.size)
        reservation.settle()
        return executable
    except BaseException as error:
        module = call = None
        if executable is not None:
            executable.close()
        reservation.release()
        forget_frames(error)
        gc.collect()
        device.free_cached()
        if isinstance(error, IsochroneError) or not is_out_of_memory(error):
            raise
        raise Unavailable(f"{account} does not fit on {device.name}: {str(error).partition('. ')[0]}") from None


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
        return call.run_compiled(inputs, settings.compile_mode) if settings.compile_mode else call.run(inputs)

    def make_input(name: str, shape: tuple[int, ...]) -> Any:
        return call.new_input(name, shape, device.name)

    names = [name for name, _ in call.outputs]
    capture = GraphCapture(device, run, make_input, names, executable.slots, executable.compute_stream, mode)
    return capture.capture(
        settings.plan,
        label=f"model '{context.model_name}' version {context.model_version}",
        where=parameters.where(context),
        required=bool(settings.graphs),
        budget=settings.graph_bytes,
    )


def _weight_bytes(module: Any, dtype: str) -> int:
    width = {"": 0, "float16": 2, "bfloat16": 2, "float32": 4}[dtype]
    return sum(
        tensor.numel() * (width if width and tensor.is_floating_point() else tensor.element_size())
        for tensor in (*module.parameters(), *module.buffers())
    )
