"""onnxruntime on a GPU: the CUDA provider of an instance whose group is on GPUs (``KIND_GPU``).

Triton's names keep their meaning: parameters of the accelerator ``cuda``, the older parameters of the model, and
``optimization.cuda.graphs``. onnxruntime may replace a provider that does not start by the CPU and only print a line;
here the load fails, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime
import structlog

from isochrone.devices.explanation import CUDA_PROVIDER
from isochrone.devices.gpu_facts import explain_missing_gpu
from isochrone.errors import ConfigError
from isochrone.worker.backends import parameters

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

log = structlog.get_logger(__name__)

PROVIDER = CUDA_PROVIDER
#: Providers that compute on the GPU of their ``device_id``.
_ON_GPUS = (PROVIDER, "TensorrtExecutionProvider")

#: The parameters of Triton's backend that name options of the provider, and its numbers for their values.
_PARAMETERS: dict[str, dict[str, str]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "do_copy_in_default_stream": {"0": "0", "1": "1"},
    "gpu_mem_limit": {},
}

Providers = list[tuple[str, dict[str, str]]]


def on_gpu(context: LoadContext, accelerators: Providers) -> Providers:
    """The accelerators of a configuration on the instance's GPU, and the CUDA provider, for what they leave to it."""
    providers = accelerators if PROVIDER in dict(accelerators) else [*accelerators, (PROVIDER, {})]
    placed: Providers = []
    for name, options in providers:
        if name == PROVIDER:
            options = {**_of_parameters(context), **options}
            if uses_graphs(context):
                options["enable_cuda_graph"] = "1"
        if name in _ON_GPUS:
            options = {**options, "device_id": str(context.gpu)}
        placed.append((name, options))
    return placed


def _of_parameters(context: LoadContext) -> dict[str, str]:
    options = {}
    for key, words in _PARAMETERS.items():
        if parameters.text(context, key) is None:
            continue
        if words:
            value = parameters.choice(context, key, "", (*words, *words.values()))
            options[key] = words.get(value, value)
        else:
            options[key] = str(parameters.integer(context, key, 0, minimum=1))
    return options


def uses_graphs(context: LoadContext) -> bool:
    """Whether the run is captured as a CUDA graph: ``optimization.cuda.graphs``, and a single shape of run.

    onnxruntime captures one graph for each session, and does not check that later runs have its shapes.
    """
    if context.gpu is None or not context.config.optimization.cuda.graphs:
        return False
    signature = context.signature
    free = [spec.name for spec in (*signature.inputs, *signature.outputs) if -1 in spec.dims]
    types = {spec.datatype for spec in (*signature.inputs, *signature.outputs)}
    optional = [spec.name for spec in signature.inputs if spec.optional]
    if signature.max_batch_size > 1:
        reason = f"max_batch_size is {signature.max_batch_size}, and batches have several sizes"
    elif free:
        reason = f"'{free[0]}' has a free size"
    elif types & {"BYTES", "BF16"}:
        reason = "tensors of BYTES and BF16 are converted for each run"
    elif optional:
        reason = f"input '{optional[0]}' is optional"
    elif context.config.HasField("sequence_batching"):
        reason = "sequences have states and control inputs"
    else:
        return True
    log.warning("optimization.cuda.graphs has no effect", model=context.model_name, reason=reason)
    return False


def not_usable(context: LoadContext) -> ConfigError:
    """The error of a load on a GPU that onnxruntime cannot use."""
    assert context.gpu is not None
    expected = (
        f"a GPU that onnxruntime can use, but {explain_missing_gpu(context.gpu, 'onnxruntime')}. To run on the CPU,"
        " change it to KIND_CPU, here or in configs/cpu.pbtxt with --model-config-name cpu"
    )
    return ConfigError(parameters.where(context), "instance_group.kind", expected, f"GPU {context.gpu}")


def preload_libraries(providers: Providers) -> None:
    """Load the CUDA libraries of NVIDIA's packages before a session needs them, where onnxruntime can find them so."""
    if PROVIDER in dict(providers) and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()


def check_provider(context: LoadContext, session: Any) -> None:
    """Raise if onnxruntime has replaced the GPU's provider by the CPU."""
    if context.gpu is None or parameters.text(context, "providers") is not None:
        return
    if PROVIDER not in session.get_providers():
        expected = (
            f"{PROVIDER} on GPU {context.gpu}, which onnxruntime could not start; its CUDA or cuDNN libraries may be"
            f" missing (pip install 'onnxruntime-gpu[cuda,cudnn]'). {explain_missing_gpu(context.gpu, 'onnxruntime')}"
        )
        raise ConfigError(parameters.where(context), "instance_group.kind", expected, f"GPU {context.gpu}")


class BoundBuffers:
    """Inputs and outputs in buffers on a device that keep their addresses, as a captured graph requires."""

    def __init__(self, session: Any, device: tuple[str, int], inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """``outputs`` are arrays of the shapes and types to expect."""
        self._session = session
        self._io = session.io_binding()
        # Of a copy: a value in the host's memory shares that of its array.
        self._inputs = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array.copy(), *device) for name, array in inputs.items()
        }
        self._outputs = {
            name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, *device)
            for name, array in outputs.items()
        }
        for name, value in self._inputs.items():
            self._io.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._io.bind_ortvalue_output(name, value)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        for name, value in self._inputs.items():
            value.update_inplace(inputs[name])
        self._session.run_with_iobinding(self._io)
        # numpy() of a value in the host's memory is a view of it; of one on a device it is a copy.
        return {name: value.numpy().copy() for name, value in self._outputs.items()}
