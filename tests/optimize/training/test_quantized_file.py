"""The file of quantization-aware training: onnxruntime computes what the module computes, or nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from isochrone.errors import Unsupported
from isochrone.optimize.training import QuantizedResult, quantized_onnx, train_quantized
from isochrone.optimize.training.onnx_verification import verify
from isochrone.optimize.training.quantized_onnx import quantized_model

WIDTH, CLASSES = 8, 3


def rows(*shape: int) -> Any:
    # Large values: sums of the first layer have a much coarser scale than those of later layers.
    return 30 * torch.randn(64, *shape, generator=torch.Generator().manual_seed(1))


def trained(module: nn.Module, inputs: Any) -> QuantizedResult:
    labels = torch.arange(len(inputs)) % CLASSES
    return train_quantized(module, [(inputs, labels)], nn.functional.cross_entropy, epochs=1, learning_rate=1e-5)


def largest_difference(result: QuantizedResult, inputs: Any, path: Path) -> float:
    """Between the module and onnxruntime with its default optimisations, as a share of the largest output."""
    result.write(path)
    with torch.no_grad():
        expected = result.module(inputs)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    served = torch.from_numpy(session.run(None, {"input": inputs.numpy()})[0])
    return float((served - expected).abs().max() / expected.abs().max())


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            self.layer.bias.fill_(2.0)
            self.layer.weight.mul_(0.3)

    def forward(self, values: Any) -> Any:
        return self.last(torch.relu(self.layer(torch.relu(self.layer(values)))))


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, values: Any) -> Any:
        return self.last(torch.relu(self.second(torch.relu(self.first(values)))))


def equal_biases() -> nn.Module:
    module = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )
    for layer in (module[0], module[2]):
        nn.init.constant_(layer.bias, 2.0).requires_grad_(False)
    return module


def equal_layers() -> nn.Module:
    module = equal_biases()
    module[2].load_state_dict(module[0].state_dict())
    module[0].requires_grad_(False)
    module[2].requires_grad_(False)
    return module


@pytest.mark.parametrize("make", [UsedTwice, TiedWeights, equal_biases, equal_layers])
def test_layers_that_share_weights_or_biases(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = trained(make(), rows(WIDTH))
    assert largest_difference(result, rows(WIDTH), tmp_path / "model.onnx") < 0.02


def test_layers_with_equal_weights_after_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = trained(equal_layers(), rows(WIDTH))
    with torch.no_grad():
        for layer in (result.module.get_submodule("0"), result.module.get_submodule("2")):
            layer.parametrizations.weight[0].factor.zero_()
    assert largest_difference(result, rows(WIDTH), tmp_path / "model.onnx") < 0.02


@pytest.mark.parametrize("channels", [1, WIDTH])
def test_a_channel_without_weights_keeps_its_bias(channels: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        module[0].weight[:channels] = 0.0
        module[0].bias[:channels] = 1.5
    result = trained(module, rows(WIDTH) / 30)
    assert largest_difference(result, rows(WIDTH) / 30, tmp_path / "model.onnx") < 0.02


def test_each_use_of_a_bias_has_the_scale_of_its_sums() -> None:
    torch.manual_seed(0)
    result = trained(UsedTwice(), rows(WIDTH))
    graph = quantized_model(result.module, result.example).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = {node.output[0]: node for node in graph.node}
    layers = [node for node in graph.node if node.op_type == "Gemm"]
    assert len({layer.input[2] for layer in layers}) == len(layers) == 3
    for layer in layers:
        inputs, weight, bias = (values[made[name].input[1]] for name in layer.input)
        assert np.array_equal(bias, inputs * weight)


def test_a_file_that_computes_other_values_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    result = trained(UsedTwice(), rows(WIDTH))
    model = quantized_model(result.module, result.example)
    verify(model.SerializeToString(), result.module, result.example)
    bias = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("bias_quantized"))
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) * 8, bias.name))
    monkeypatch.setattr(quantized_onnx, "quantized_model", lambda *_: model)
    with pytest.raises(Unsupported, match="onnxruntime computes other values"):
        result.write(tmp_path / "model.onnx")
    monkeypatch.setattr(quantized_onnx, "quantized_model", lambda *_: onnx.ModelProto())
    with pytest.raises(Unsupported, match="onnxruntime cannot run"):
        result.write(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_weight_that_the_exporter_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained(nn.Sequential(nn.Linear(WIDTH, CLASSES)), rows(WIDTH))
    plain, _ = quantized_onnx._with_plain_weights(result.module)
    monkeypatch.setattr(quantized_onnx, "_with_plain_weights", lambda _: (plain, {"missing.weight": np.ones(1)}))
    with pytest.raises(Unsupported, match=r"torch exported no weight missing\.weight"):
        quantized_model(result.module, result.example)


def test_conv1d_is_written_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, CLASSES))
    result = trained(module, rows(2, WIDTH))
    assert largest_difference(result, rows(2, WIDTH), tmp_path / "model.onnx") < 0.02
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("QLinearConv") == 1
    assert "QGemm" in kinds
