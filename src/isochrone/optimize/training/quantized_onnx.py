"""Writes a trained module with quantizers as an ONNX file with QDQ nodes and integer weights.

torch's exporter writes the graph, with a pair of QuantizeLinear and DequantizeLinear for each quantizer of activations.
Weights and biases become integers here: torch leaves them as floats before a QuantizeLinear, four times as large. The
exporter is the one by tracing: the newer one needs onnxscript, and writes no QDQ nodes for quantizers that are modules.
Nothing is written unless onnxruntime computes what the module computes (``onnx_verification``).
"""

from __future__ import annotations

import copy
import io
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from isochrone.errors import ConfigError, InvalidArgument, Unsupported
from isochrone.optimize.training.fake_quantization import LEAST_SCALE, WeightQuantizer
from isochrone.optimize.training.onnx_verification import verify

#: Old enough for every onnxruntime that pyproject.toml allows.
OPSET, IR_VERSION = 17, 8
#: Channels with a scale below have no weights: they were calibrated to the least scale, and training changed it little.
_DEAD_SCALE = 10 * LEAST_SCALE
#: Of weights that are all zero: biases up to a million steps of the input fit in INT32, to a thousandth of a step.
_SCALE_OF_ZEROS = 1e-3


def write_quantized(module: Any, example: Any, path: Path) -> None:
    """Write the file, or leave what is at ``path`` as it is."""
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path.parent} is no directory; make it first")
    content = quantized_model(module, example).SerializeToString()
    verify(content, module, example)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def quantized_model(module: Any, example: Any) -> Any:
    """The ONNX model: rows of ``example`` in, as many rows out."""
    try:
        import onnx
    except ImportError as error:
        expected = "onnx to be installed (pip install isochrone[training])"
        raise ConfigError("the quantized model", "write", expected, str(error)) from error
    plain, scales = _with_plain_weights(module)
    model = onnx.load_from_string(_exported(plain, example))
    model.ir_version = IR_VERSION
    graph = model.graph
    _fold_constants(graph)
    _separate_initializers(graph)
    for name, scale in scales.items():
        _quantize_weight(graph, name, scale)
    _flatten_integers(graph)
    _quantize_biases(graph)
    onnx.checker.check_model(model)
    return model


def _with_plain_weights(module: Any) -> tuple[Any, dict[str, Any]]:
    """A copy whose weights are rounded and no longer parametrized, and the scales by the name of the weight."""
    plain = copy.deepcopy(module).eval()
    scales = {}
    for name, layer in list(plain.named_modules()):
        if not parametrize.is_parametrized(layer, "weight"):
            continue
        quantizer = layer.parametrizations.weight[0]
        if isinstance(quantizer, WeightQuantizer):
            scales[f"{name}.weight"] = quantizer.scale.detach().flatten().cpu().numpy()
            _remove_parametrization(layer)
    return plain, scales


def _remove_parametrization(layer: Any) -> None:
    """As torch's remove_parametrizations, which removes it from the layers that this one was copied from as well."""
    weight = layer.weight.detach().clone()
    layer.__class__ = type(layer).__mro__[1]
    del layer.parametrizations
    layer.weight = nn.Parameter(weight)


def _exported(module: Any, example: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (example,),
                buffer,
                dynamo=False,
                opset_version=OPSET,
                do_constant_folding=False,
                input_names=["input"],
                output_names=["output"],
                dynamic_axes={"input": {0: "rows"}, "output": {0: "rows"}},
            )
    except (RuntimeError, TypeError, ValueError) as error:
        raise Unsupported(f"torch cannot export the module to ONNX: {error}") from error
    return buffer.getvalue()


def _fold_constants(graph: Any) -> None:
    """Make the scales and zero points of activations initializers: the exporter writes constants with casts."""
    from onnx import helper, numpy_helper

    known = {tensor.name: tensor for tensor in graph.initializer}
    wanted = {name for node in graph.node if node.op_type.endswith("uantizeLinear") for name in node.input[1:]}
    values: dict[str, Any] = {}
    for node in list(graph.node):
        if node.op_type == "Constant":
            values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Cast" and node.input[0] in values:
            kind = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
            values[node.output[0]] = values[node.input[0]].astype(kind)
    for name in sorted(wanted & values.keys() - known.keys()):
        graph.initializer.append(numpy_helper.from_array(values[name], name))
    _drop_unused(graph, wanted)


def _drop_unused(graph: Any, replaced: set[str]) -> None:
    """Remove the nodes whose values are initializers now, then those that nothing reads any more."""
    for node in [node for node in graph.node if node.output[0] in replaced and node.op_type in ("Constant", "Cast")]:
        graph.node.remove(node)
    while True:
        read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
        dead = [node for node in graph.node if not read.intersection(node.output)]
        if not dead:
            return
        for node in dead:
            graph.node.remove(node)


def _separate_initializers(graph: Any) -> None:
    """Give each layer initializers of its own: the exporter writes equal ones once, and an Identity for the others.

    Equal weights may have different scales, and equal biases are integers of different scales.
    """
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Identity" and node.input[0] in known]:
        if node.output[0] in {output.name for output in graph.output}:
            continue
        tensor = copy.deepcopy(known[node.input[0]])
        tensor.name = node.output[0]
        known[tensor.name] = tensor
        graph.initializer.append(tensor)
        graph.node.remove(node)


def _quantize_weight(graph: Any, name: str, scale: Any) -> None:
    """Replace the float initializer ``name`` by integers and a DequantizeLinear with one scale per output channel."""
    from onnx import numpy_helper

    tensor = next((tensor for tensor in graph.initializer if tensor.name == name), None)
    if tensor is None:
        raise Unsupported(f"torch exported no weight {name}: this version of torch names or merges weights differently")
    weight = numpy_helper.to_array(tensor)
    integers = np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1))).clip(-127, 127).astype(np.int8)
    # The least scale, which a channel without weights is calibrated to, would let its bias overflow INT32.
    dead = scale < _DEAD_SCALE
    integers[dead] = 0
    scale = np.where(dead, max(scale[~dead], default=_SCALE_OF_ZEROS), scale)
    graph.initializer.remove(tensor)
    _dequantize(graph, name, integers, scale.astype(np.float32))


def _quantize_biases(graph: Any) -> None:
    """Biases as INT32 with the scale of the sums that they are added to, which onnxruntime's INT8 kernels assume.

    A layer that is used twice adds its bias to sums of two scales: each use gets integers of its own.
    """
    from onnx import numpy_helper

    known = {tensor.name: tensor for tensor in graph.initializer}
    made = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in list(graph.node):
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3 or node.input[2] not in known:
            continue
        if not (node.input[0] in made and node.input[1] in made):
            continue
        scales = [numpy_helper.to_array(_scale_of(graph, made[name])) for name in node.input[:2]]
        scale = np.maximum(scales[0].reshape(-1) * scales[1], LEAST_SCALE**2).astype(np.float32)
        name = node.input[2]
        bias = numpy_helper.to_array(known[name]).astype(np.float64)
        limits = np.iinfo(np.int32)
        integers = np.rint(bias / scale).clip(limits.min, limits.max).astype(np.int32)
        uses = sum(used == name for other in graph.node for used in other.input)
        if uses == 1:
            graph.initializer.remove(known[name])
        else:
            name = node.input[2] = f"{name}_of_{node.output[0]}"
        _dequantize(graph, name, integers, scale)


def _flatten_integers(graph: Any) -> None:
    """Flatten before the DequantizeLinear and not after: else onnxruntime leaves the layer behind it in floats."""
    nodes = list(graph.node)
    made = {node.output[0]: node for node in nodes}
    for node in nodes:
        before = made.get(node.input[0]) if node.op_type == "Flatten" else None
        if before is None or before.op_type != "DequantizeLinear":
            continue
        if sum(before.output[0] in other.input for other in nodes) > 1:
            continue
        result, floats = node.output[0], before.output[0]
        node.input[0], node.output[0] = before.input[0], f"{floats}_flattened"
        before.input[0], before.output[0] = node.output[0], result
        moved = copy.deepcopy(before)
        graph.node.remove(before)
        graph.node.insert(list(graph.node).index(node) + 1, moved)


def _scale_of(graph: Any, node: Any) -> Any:
    return next(tensor for tensor in graph.initializer if tensor.name == node.input[1])


def _dequantize(graph: Any, name: str, integers: Any, scale: Any) -> None:
    """Compute ``name`` from integers; no initializer has this name any more."""
    from onnx import helper, numpy_helper

    zero = np.zeros(scale.shape, integers.dtype)
    parts = {f"{name}_quantized": integers, f"{name}_scale": scale, f"{name}_zero_point": zero}
    graph.initializer.extend(numpy_helper.from_array(value, part) for part, value in parts.items())
    graph.node.insert(0, helper.make_node("DequantizeLinear", list(parts), [name], name=f"{name}_dequantize", axis=0))
