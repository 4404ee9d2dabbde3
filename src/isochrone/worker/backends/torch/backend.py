"""PyTorch models: programs saved by ``torch.export`` or compiled by AOTInductor (both ``model.pt2``), and
TorchScript (``model.pt``); with ranks, modules of a ``model.py`` (``parallel``).

``load`` reads the file for one instance; the worker then calls ``execute`` with whole batches. Inputs are matched as in
Triton's pytorch backend: names that end in ``__0``, ``__1``, … are positions; names that are all arguments of
``forward`` are those arguments; other names follow the configuration's order. Outputs are matched in the
configuration's order, or by key if the model returns a dict.

Instances of ``KIND_GPU`` run on a GPU (``gpu``), others on the CPU, here. With the parameter ``isolation: "process"``,
and of packages for CUDA by default, every instance has a process of its own, which calls ``load_here`` (``isolated``);
this process then never imports torch for it.

torch is an extra and takes a second to import, so ``load`` imports it. Its thread settings apply to the whole process:
``intra_op_thread_count`` of the model loaded last applies to every torch model.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from isochrone.devices.loads import loading
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed, Unavailable
from isochrone.models.runtimes import optional_runtime
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.isolation.sent_context import sent_context
from isochrone.worker.backends.tensors.declared import declared_outputs
from isochrone.worker.backends.torch.arguments import check_datatypes, input_names, matched_arguments
from isochrone.worker.backends.torch.error_text import error_text
from isochrone.worker.backends.torch.files import LoadedFile, load_file
from isochrone.worker.backends.torch.gpu import sm_partitions
from isochrone.worker.backends.torch.gpu.loading import gpu_of, load_on_gpu, room_for_package
from isochrone.worker.backends.torch.gpu.loading_threads import load_on_thread
from isochrone.worker.backends.torch.host_arrays import to_numpy, to_torch
from isochrone.worker.backends.torch.modes import run_mode
from isochrone.worker.backends.torch.packages import compiled_target, dropping, needs_own_process
from isochrone.worker.backends.torch.parallel.settings import is_parallel, parallel_settings
from isochrone.worker.backends.torch.results import Results
from isochrone.worker.backends.torch.weights import free_weights

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

log = structlog.get_logger(__name__)

_LOADER = "isochrone.worker.backends.torch.isolated"
_PARALLEL_LOADER = "isochrone.worker.backends.torch.parallel.executable"


class TorchExecutable(Executable):
    """One module, called with tensors that share the memory of the batch, unless a cache keeps it."""

    # Torch keeps state per thread (grad mode, allocator caches, its thread pool), and its dispatcher alone costs tens
    # of microseconds.
    inline_allowed = False

    def __init__(
        self,
        context: LoadContext,
        torch: Any,
        module: Callable[..., Any],
        arguments: tuple[list[str], list[str]],
    ) -> None:
        self._label = f"model '{context.model_name}' version {context.model_version}"
        self._torch = torch
        self._module: Callable[..., Any] | None = module
        self._positional, self._keywords = arguments
        self._outputs = [(name, NUMPY_BY_NAME[datatype]) for name, datatype in declared_outputs(context).items()]
        self._results = Results(self._label, [name for name, _ in self._outputs])
        self._mode = run_mode(context, torch)

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        assert self._module is not None
        try:
            with self._mode():
                positional = [to_torch(self._torch, inputs[name]) for name in self._positional]
                keywords = {name: to_torch(self._torch, inputs[name]) for name in self._keywords}
                results = self._results.matched(self._module(*positional, **keywords))
                requested = self._outputs if outputs is None else [o for o in self._outputs if o[0] in outputs]
                return {name: self._to_numpy(name, dtype, results[name]) for name, dtype in requested}
        except IsochroneError:
            raise
        except Exception as error:
            raise ModelFailed(f"{self._label}: torch: {error_text(error)}") from error

    def close(self) -> None:
        with dropping(self._module):
            free_weights(self._module)
            self._module = None

    def _to_numpy(self, name: str, dtype: np.dtype[Any], value: Any) -> Tensor:
        self._results.check(name, dtype, value)
        return to_numpy(self._torch, value)


def load(context: LoadContext) -> Executable:
    _check_trust(context)
    given = parameters.choice(context, "isolation", "", ("thread", "process"))
    # A group of one rank is a model like others, in the worker's process unless the configuration isolates it.
    if is_parallel(context) and parallel_settings(context).layout.ranks > 1 and _is_installed("torch"):
        return IsolatedExecutable(context, _PARALLEL_LOADER, sent_context(context))
    # Where torch is missing, the error names what to install.
    if given == "thread" or not _is_installed("torch") or (not given and not _needs_own_process(context)):
        return load_here(context)
    if not given and context.instance == 0:
        log.info(
            "an AOTInductor package for CUDA runs in a process of its own, which its native code may crash; "
            'isolation: "thread" runs it inside the worker',
            model=context.model_name,
            version=context.model_version,
        )
    return IsolatedExecutable(context, _LOADER, sent_context(_without_reserved_sms(context, given)))


def _check_trust(context: LoadContext) -> None:
    """Raises if loading the model would run code of its files, and the operator has not said that it may."""
    if context.trusted:
        return
    if is_parallel(context):
        kind = "model.py of ranks, which run unconfined"
    else:
        path = _model_file(context)
        if path.suffix != ".pt2":
            kind = f"TorchScript ({path.name}), a program that runs inside the worker"
        elif compiled_target(path) is not None:
            kind = f"an AOTInductor package ({path.name}), which is native code"
        else:
            return
    name = context.model_name
    raise ConfigError(
        str(context.directory),
        "model file",
        "a program saved by torch.export or an ONNX model, which are data; or trust in this model: "
        f"isochrone serve --trust-model {name}, in a fleet models.{name}.trust: true",
        kind,
    )


def _is_installed(package: str) -> bool:
    """Whether it can be imported, without doing so."""
    try:
        return find_spec(package) is not None
    except ValueError:  # it was imported in a way of its own
        return sys.modules.get(package) is not None


def _needs_own_process(context: LoadContext) -> bool:
    if is_parallel(context):
        return False
    path = _model_file(context)
    return path.suffix == ".pt2" and needs_own_process(compiled_target(path))


def load_here(context: LoadContext) -> Executable:
    """Loads a model into this process, whatever its ``isolation``."""
    torch = optional_runtime("torch", "torch", parameters.where(context))
    path = _model_file(context)
    check_datatypes(context)
    gpu = gpu_of(context, torch)
    threads = parameters.integer(context, "intra_op_thread_count", 0, minimum=1)
    if threads:
        torch.set_num_threads(threads)
    try:
        with nullcontext() if gpu is None else room_for_package(context, torch, path, gpu):
            file = load_module(context) if is_parallel(context) else load_file(torch, path, gpu)
            try:
                # Only its loaded library knows the arguments of a package, which is on its GPU by then.
                arguments = matched_arguments(context, input_names(context), (file.positional, file.keywords))
            except BaseException:
                file.release()
                raise
    except (ConfigError, Unavailable):
        raise
    except Exception as error:
        raise InvalidArgument(f"{path}: torch cannot load this file: {error}") from error
    if gpu is None:
        assert file.call is not None
        return TorchExecutable(context, torch, file.call, arguments)
    # Not while a file is read to the CPU, which may take minutes.
    with loading():
        return load_on_thread(gpu, lambda: load_on_gpu(context, torch, file, arguments, gpu, path))


def load_module(context: LoadContext) -> LoadedFile:
    """The module of a ``model.py``, whole: the one rank of a parallel instance has all of it."""
    # Imports torch.
    from isochrone.worker.backends.torch.parallel.module_loading import build

    built = build(context, parallel_settings(context))
    module = built.load(0, None, "cpu")
    return LoadedFile(module, built.positional, built.keywords, module.to)


def _without_reserved_sms(context: LoadContext, isolation: str) -> LoadContext:
    """Processes take turns on a GPU, each with all of it: one cannot reserve a part of it from another."""
    if sm_partitions.reserves(context):
        expected = f'"thread" for a model with {sm_partitions.KEY}, which reserves SMs within one process'
        parameters.reject(
            context, "isolation", expected, isolation or "nothing: a package for CUDA has its own process"
        )
    left = {key: value for key, value in context.parameters.items() if key.lower() != sm_partitions.KEY}
    return dataclasses.replace(context, parameters=left)


def _model_file(context: LoadContext) -> Path:
    given = context.config.default_model_filename
    names = ("model.py",) if is_parallel(context) else ("model.pt2", "model.pt")
    for name in [given] if given else names:
        if (context.directory / name).is_file():
            return context.directory / name
    raise ConfigError(str(context.directory), "model file", given or " or ".join(names), "no such file")
