"""A copy of a module with fake quantization: where quantizers stand is decided here, on the traced graph of the module.

Inputs of layers that compute in INT8 are quantized, and outputs of such layers (after their ReLU) unless the caller
gets them: then onnxruntime finds both sides of each layer quantized, which is what its INT8 kernels need. Operators
that only move values (flatten, max pooling) keep the grid of their input. Batch normalisation is folded into the layer
before it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from isochrone.errors import InvalidArgument
from isochrone.optimize.training.fake_quantization import ActivationQuantizer, WeightQuantizer

QUANTIZED_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_ACTIVATIONS = (nn.ReLU, nn.ReLU6)
_ACTIVATION_CALLS = (torch.relu, nn.functional.relu, nn.functional.relu6, "relu")
_MOVES = (nn.Flatten, nn.MaxPool1d, nn.MaxPool2d, nn.Dropout, nn.Dropout2d, nn.Identity)
_MOVE_CALLS = (
    torch.flatten,
    torch.reshape,
    nn.functional.max_pool2d,
    nn.functional.dropout,
    *("flatten", "reshape", "view", "contiguous"),
)


@dataclass(frozen=True, slots=True)
class PreparedModule:
    """A traced copy with quantizers, and the names of the layers with parameters: quantized, and left in floats.

    Layers inside of modules that torch.fx does not trace, such as nn.TransformerEncoderLayer, stay in floats.
    """

    module: Any
    quantized_layers: tuple[str, ...]
    float_layers: tuple[str, ...]


def prepared(module: Any, weight_bits: int) -> PreparedModule:
    """Put quantizers into a traced copy of ``module``; layers keep their names, and ``module`` stays as it is."""
    graph = _traced(module)
    _fold_norms(graph)
    nodes = [node for node in graph.graph.nodes if _calls(graph, node, QUANTIZED_LAYERS)]
    if not nodes:
        raise InvalidArgument(
            f"{type(module).__name__} has no layer that can be quantized: it needs a Conv1d, Conv2d or Linear"
        )
    quantized_layers = tuple(dict.fromkeys(node.target for node in nodes))
    float_layers = tuple(name for name in _names_with_parameters(graph) if name not in quantized_layers)
    for number, node in enumerate(_quantized_values(graph, nodes)):
        name = f"activation_quantizer_{number}"
        graph.add_submodule(name, ActivationQuantizer())
        with graph.graph.inserting_after(node):
            quantizer = graph.graph.call_module(name, (node,))
        node.replace_all_uses_with(quantizer, delete_user_cb=lambda user, own=quantizer: user is not own)
    for name in quantized_layers:
        layer = graph.get_submodule(name)
        parametrize.register_parametrization(layer, "weight", WeightQuantizer(layer.weight, weight_bits))
    graph.graph.lint()
    graph.recompile()
    return PreparedModule(graph, quantized_layers, float_layers)


def _traced(module: Any) -> Any:
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"the module must be a torch.nn.Module, not a {type(module).__name__}")
    if parametrize.is_parametrized(module) or any(map(parametrize.is_parametrized, module.modules())):
        raise InvalidArgument(
            "the module has parametrized weights (torch.nn.utils.parametrize); remove them with remove_parametrizations"
        )
    try:
        graph = fx.symbolic_trace(copy.deepcopy(module).eval())
    except Exception as error:  # Tracing runs the module's own code, which may raise anything.
        raise InvalidArgument(
            f"{type(module).__name__} cannot be traced by torch.fx, for which control flow must not depend on values: "
            f"{error}"
        ) from error
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise InvalidArgument(f"{type(module).__name__} must take one tensor, it takes {len(inputs)} arguments")
    _reject_training_mode(module, graph)
    return graph


def _reject_training_mode(module: Any, evaluated: Any) -> None:
    """A traced graph has one mode: it would leave out, without a word, what depends on ``self.training``."""
    try:
        same = str(fx.symbolic_trace(copy.deepcopy(module).train()).graph) == str(evaluated.graph)
    except Exception:  # As above: what cannot be traced in training mode differs from what can be traced without it.
        same = False
    if not same:
        raise InvalidArgument(
            f"{type(module).__name__} uses self.training in its forward method, which torch.fx cannot keep; replace "
            "torch.nn.functional.dropout by a torch.nn.Dropout, and remove other branches on self.training"
        )


def _names_with_parameters(graph: Any) -> list[str]:
    """The modules with parameters of their own; parameters of the outermost module by their own names."""
    own = [name for name, _ in graph.named_parameters(recurse=False)]
    return own + [name for name, part in graph.named_modules() if name and any(True for _ in part.parameters(False))]


def _fold_norms(graph: Any) -> None:
    for norm in [node for node in graph.graph.nodes if _calls(graph, node, _NORMS)]:
        before = _input_of(norm)
        layer_calls = [node for node in graph.graph.nodes if node.target == before.target and node.op == before.op]
        if not _calls(graph, before, QUANTIZED_LAYERS) or len(before.users) > 1 or len(layer_calls) > 1:
            continue
        layer, batch_norm = graph.get_submodule(before.target), graph.get_submodule(norm.target)
        if batch_norm.running_mean is None:
            continue
        fuse = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        graph.add_submodule(before.target, fuse(layer, batch_norm))
        norm.replace_all_uses_with(before)
        graph.graph.erase_node(norm)
    graph.delete_all_unused_submodules()


def _quantized_values(graph: Any, nodes: list[Any]) -> list[Any]:
    """The nodes whose values get a quantizer, in the order of the graph."""
    chosen = set()
    for node in nodes:
        chosen.add(_origin(graph, _input_of(node)))
        users = list(node.users)
        after = users[0] if len(users) == 1 and _is_activation(graph, users[0]) else node
        if any(user.op != "output" for user in after.users):
            chosen.add(after)
    return [node for node in graph.graph.nodes if node in chosen]


def _origin(graph: Any, node: Any) -> Any:
    """The node that computed the values that ``node`` has moved, or ``node`` itself."""
    while _calls(graph, node, _MOVES) or _is_call(node, _MOVE_CALLS):
        node = _input_of(node)
    return node


def _input_of(node: Any) -> Any:
    if not node.args:
        raise InvalidArgument(
            f"{node.target} gets its input by keyword; pass it by position in the forward method: layer(x), not "
            "layer(input=x)"
        )
    return node.args[0]


def _is_activation(graph: Any, node: Any) -> bool:
    return _calls(graph, node, _ACTIVATIONS) or _is_call(node, _ACTIVATION_CALLS)


def _calls(graph: Any, node: Any, kinds: tuple[Any, ...]) -> bool:
    return node.op == "call_module" and isinstance(graph.get_submodule(node.target), kinds)


def _is_call(node: Any, calls: tuple[Any, ...]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in calls
