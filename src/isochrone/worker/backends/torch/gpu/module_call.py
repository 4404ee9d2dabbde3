"""The call of a module with inputs by name: which are positional, in which type it computes, what its results are."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from isochrone.devices.loads import loading
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends.tensors.declared import declared_outputs
from isochrone.worker.backends.torch.gpu.slots import torch_dtype
from isochrone.worker.backends.torch.packages import dropping
from isochrone.worker.backends.torch.quiet_warnings import quiet_warnings
from isochrone.worker.backends.torch.results import Results
from isochrone.worker.backends.torch.weights import free_weights

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

#: One at a time, as torch's compiler has it anyway: settings of the compiler are those of the whole process in torch
#: before 2.12.
_COMPILES = threading.Lock()
#: Settings by which the compiler gives up a function that it has compiled often; torch 2.6 has the second names.
_LIMITS = (("recompile_limit", "cache_size_limit"), ("accumulated_recompile_limit", "accumulated_cache_size_limit"))
_NO_LIMIT = 1 << 30


class ModuleCall:
    """A module on a device. Results are in the order of the declared outputs."""

    def __init__(
        self,
        context: LoadContext,
        torch: Any,
        module: Callable[..., Any],
        arguments: tuple[list[str], list[str]],
        dtype: str,
        mode: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._torch = torch
        self._module: Callable[..., Any] | None = module
        self._positional, self._keywords = arguments
        self._mode = mode
        #: The type in which the model computes, if it is not that of its file.
        self._own_type = getattr(torch, dtype) if dtype else None
        self.input_types = {spec.name: NUMPY_BY_NAME[spec.datatype] for spec in context.signature.inputs}
        self.outputs = [(name, NUMPY_BY_NAME[datatype]) for name, datatype in declared_outputs(context).items()]
        label = f"model '{context.model_name}' version {context.model_version}"
        self._results = Results(label, [name for name, _ in self.outputs])
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        assert self._module is not None
        with self._mode():
            return self._call(self._module, {name: self._converted(tensor) for name, tensor in inputs.items()})

    def compile(self, inputs: Mapping[str, Any], mode: str) -> None:
        """Compiles the module for exactly these shapes, and runs it once. Raises what torch raises.

        As one graph, or not at all: where torch gives up a part of the code, that part would run uncompiled in silence.
        Exported programs are one graph.
        """
        call = self._torch.compile(self._module, mode=mode, dynamic=False, fullgraph=True)
        with _COMPILES, quiet_warnings(), _recompiles_unlimited(), self._mode():
            self._call(call, inputs)
        self._compiled[_shapes(inputs)] = call

    def run_compiled(self, inputs: Mapping[str, Any]) -> list[Any]:
        """``run`` with the module that was compiled for these shapes."""
        with self._mode():
            return self._call(self._compiled[_shapes(inputs)], inputs)

    def free(self) -> None:
        """Drops the module and its weights; it is not called any more."""
        with loading(), dropping(self._module):
            self._compiled.clear()
            free_weights(self._module)
            self._module = None

    def _call(self, module: Callable[..., Any], inputs: Mapping[str, Any]) -> list[Any]:
        positional = [inputs[name] for name in self._positional]
        keywords = {name: inputs[name] for name in self._keywords}
        matched = self._results.matched(module(*positional, **keywords))
        for name, dtype in self.outputs:
            self._results.check(name, dtype, matched[name], converts=self._own_type is not None)
        return [matched[name] for name, _ in self.outputs]

    def new_input(self, name: str, shape: tuple[int, ...], device: str) -> Any:
        """Zeros, in the type in which the model reads an input."""
        with self._mode():
            return self._torch.zeros(shape, dtype=self._read_type(name), device=device)

    def _read_type(self, name: str) -> Any:
        dtype = torch_dtype(self._torch, self.input_types[name])
        return self._own_type if self._own_type is not None and dtype.is_floating_point else dtype

    def _converted(self, tensor: Any) -> Any:
        if self._own_type is None or not tensor.is_floating_point():
            return tensor
        return tensor.to(self._own_type)


def _recompiles_unlimited() -> AbstractContextManager[Any]:
    """Each size is one compilation, and all sizes of a model count together: the limit is 8 otherwise."""
    config: Any = importlib.import_module("torch._dynamo.config")
    names = (next(name for name in limits if hasattr(config, name)) for limits in _LIMITS)
    unlimited: AbstractContextManager[Any] = config.patch(dict.fromkeys(names, _NO_LIMIT))
    return unlimited


def _shapes(inputs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in inputs.values())
