"""Quantization-aware training: the file computes what the trained module computes, in INT8, and mistakes are named."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from trained_modules import batches, pictures, separable_net

from isochrone.errors import InvalidArgument, ModelFailed
from isochrone.optimize.training import EpochReport, quantization_aware, quantized_onnx, train_quantized
from isochrone.optimize.transforming.facts import MachineFacts

cross_entropy = nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(path: Path, pixels: Any, optimized: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return torch.from_numpy(onnxruntime.InferenceSession(path, options).run(None, {"input": pixels.numpy()})[0])


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("bits", [None, 4])
def test_the_file_computes_what_the_module_computes_with_int8_kernels(tmp_path: Path, bits: int | None) -> None:
    result = train_quantized(separable_net(), batches(), cross_entropy, epochs=2, weight_bits=bits)
    result.write(tmp_path / "model.onnx")
    pixels, _ = pictures(40, seed=1)
    with torch.no_grad():
        simulated = result.module(pixels)
    served = run(tmp_path / "model.onnx", pixels, tmp_path / "optimized.onnx")
    assert served.shape == simulated.shape
    # A value that lies between two integers may be rounded either way: one step of the last activation.
    assert torch.allclose(served, simulated, atol=0.02 * float(simulated.abs().max()))
    kinds = operators(tmp_path / "optimized.onnx")
    assert kinds.count("QLinearConv") == 3
    assert "QGemm" in kinds
    assert not {"Conv", "FusedConv", "Gemm"} & set(kinds)


def test_weights_are_integers_of_the_bits_that_were_asked_for(tmp_path: Path) -> None:
    train_quantized(separable_net(), batches(), cross_entropy, epochs=1, weight_bits=3).write(tmp_path / "model.onnx")
    tensors = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / "model.onnx").graph.initializer
    }
    weights = [values for name, values in tensors.items() if name.endswith("weight_quantized")]
    assert len(weights) == 4
    assert all(values.dtype == "int8" and abs(values).max() == 3 for values in weights)


@pytest.mark.parametrize(
    ("flags", "largest"),
    [({"avx2"}, 63), ({"avx2", "avx512_vnni"}, 127), ({"avx2", "avx_vnni"}, 127), ({"asimd"}, 127)],
)
def test_weights_fit_the_sums_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: set[str], largest: int
) -> None:
    machine = MachineFacts(frozenset(flags), 2, False, False)
    monkeypatch.setattr(quantization_aware, "machine_facts", lambda: machine)
    path = tmp_path / "model.onnx"
    # The file would not be verified where the real machine has other sums.
    monkeypatch.setattr(quantized_onnx, "verify", lambda *_: None)
    torch.manual_seed(0)
    train_quantized(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), batches(), cross_entropy, epochs=1).write(path)
    (weights,) = (
        onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(path).graph.initializer
        if tensor.name.endswith("weight_quantized")
    )
    # Scales are learned, so the largest weight need not be the last integer; one bit less could not hold it.
    assert largest // 2 < abs(weights.astype(int)).max() <= largest


def test_training_lowers_the_loss_and_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    before = copy.deepcopy(module.state_dict())
    reports: list[EpochReport] = []
    result = train_quantized(module, batches(), cross_entropy, epochs=6, learning_rate=3e-2, on_epoch=reports.append)
    assert result.losses[-1] < 0.8 * result.losses[0]
    assert [(report.epoch, report.epochs, report.loss) for report in reports] == [
        (number, 6, loss) for number, loss in enumerate(result.losses, 1)
    ]
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert module.training


def test_a_trained_module_stays_as_good() -> None:
    module = separable_net().eval()
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-2)
    for pixels, labels in batches() * 30:
        optimizer.zero_grad()
        cross_entropy(module(pixels), labels).backward()
        optimizer.step()
    result = train_quantized(module, batches(), cross_entropy, epochs=3)
    assert result.losses[-1] < 0.05


def test_a_seed_gives_the_same_result_and_leaves_the_random_numbers_of_the_caller() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    first, second = (
        train_quantized(separable_net_with_dropout(), batches(), cross_entropy, epochs=2, seed=5) for _ in range(2)
    )
    assert first.losses == second.losses
    linear = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    torch.manual_seed(7)
    train_quantized(linear, batches(), cross_entropy, epochs=1)
    assert torch.equal(torch.rand(1), expected)


def separable_net_with_dropout() -> nn.Module:
    return nn.Sequential(*separable_net()[:-1], nn.Dropout(0.5), nn.Linear(8, 3))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4 * 36, 3)

    def forward(self, pixels: Any) -> Any:
        hidden = torch.relu(self.first(pixels))
        hidden = nn.functional.relu(self.second(hidden) + hidden)
        return self.last(hidden.flatten(1))


def test_residual_modules_are_written_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = train_quantized(Residual(), batches(), cross_entropy, epochs=1)
    result.write(tmp_path / "model.onnx")
    pixels, _ = pictures(5, seed=2)
    with torch.no_grad():
        simulated = result.module(pixels)
    served = run(tmp_path / "model.onnx", pixels, tmp_path / "optimized.onnx")
    assert torch.allclose(served, simulated, atol=0.03 * float(simulated.abs().max()))
    assert operators(tmp_path / "optimized.onnx").count("QLinearConv") == 2


def test_the_result_names_quantized_layers_and_those_left_in_floats(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    module = nn.Sequential(nn.Flatten(1, 2), nn.Linear(6, 6), encoder, nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 3))
    result = train_quantized(module, batches(), cross_entropy, epochs=1)
    assert result.quantized_layers == ("1", "5")
    inner = ("self_attn", "self_attn.out_proj", "linear1", "linear2", "norm1", "norm2")
    assert result.float_layers == (*(f"2.{name}" for name in inner), "4")
    result.write(tmp_path / "model.onnx")
    pixels, _ = pictures(5, seed=2)
    with torch.no_grad():
        simulated = result.module(pixels)
    assert torch.allclose(run(tmp_path / "model.onnx", pixels), simulated, atol=0.02 * float(simulated.abs().max()))


def test_parameters_outside_of_layers_stay_in_floats() -> None:
    result = train_quantized(Scaled(), batches(), cross_entropy, epochs=1)
    assert (result.quantized_layers, result.float_layers) == (("layer",), ("gain",))
    folded = train_quantized(separable_net(), batches(), cross_entropy, epochs=1)
    assert (folded.quantized_layers, folded.float_layers) == (("0", "3", "6", "10"), ())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(36, 3), nn.Parameter(torch.ones(3))

    def forward(self, pixels: Any) -> Any:
        return self.layer(pixels.flatten(1)) * self.gain


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, pixels: Any) -> Any:
        return self.layer(nn.functional.dropout(pixels.flatten(1), 0.5, self.training))


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, pixels: Any) -> Any:
        return self.layer(input=pixels.flatten(1))


class FlattenedByKeyword(ByKeyword):
    def forward(self, pixels: Any) -> Any:
        return self.layer(torch.flatten(input=pixels, start_dim=1))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, pixels: Any) -> Any:
        return self.layer(pixels.flatten(1)) if pixels.sum() > 0 else pixels


class TwoInputs(nn.Module):
    def forward(self, first: Any, second: Any) -> Any:
        return first + second


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "has no layer that can be quantized"),
        (Branching(), "cannot be traced by torch.fx"),
        (FunctionalDropout(), r"FunctionalDropout uses self\.training .* replace .* by a torch\.nn\.Dropout"),
        (FunctionalDropout().eval(), r"uses self\.training"),
        (ByKeyword(), "layer gets its input by keyword"),
        (FlattenedByKeyword(), "gets its input by keyword"),
        (TwoInputs(), "must take one tensor, it takes 2"),
        ("model.pt", "must be a torch.nn.Module, not a str"),
    ],
)
def test_modules_that_cannot_be_quantized(module: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        train_quantized(module, batches(), cross_entropy, epochs=1)


PIXELS, LABELS = pictures(8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no batches"),
        ([PIXELS], "no pair of tensors"),
        ([(PIXELS, LABELS[:5])], "differ in their number of rows"),
        ([(PIXELS[:0], LABELS[:0])], "has no rows"),
        ([(PIXELS, LABELS), (PIXELS[:, :, :4], LABELS)], r"batch 2 of epoch 1: its rows have the shape \(1, 4, 6\)"),
        ([(torch.zeros(8, 2, 6, 6), LABELS)], r"does not take inputs of shape \(8, 2, 6, 6\)"),
        ([(PIXELS, torch.zeros(8, 2))], "the loss cannot be computed"),
    ],
)
def test_batches_that_do_not_fit(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        train_quantized(separable_net(), given, cross_entropy, epochs=1)


def test_a_generator_ends_after_calibration() -> None:
    with pytest.raises(InvalidArgument, match="pass a list or a DataLoader"):
        train_quantized(separable_net(), (batch for batch in batches()), cross_entropy, epochs=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"epochs": 0}, "epochs"), ({"weight_bits": 9}, "weight_bits"), ({"learning_rate": -1.0}, "learning_rate")],
)
def test_settings_out_of_range(settings: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        train_quantized(separable_net(), batches(), cross_entropy, **{"epochs": 1, **settings})


def test_losses_must_be_finite_scalars() -> None:
    with pytest.raises(ModelFailed, match="batch 1 of epoch 1: the loss is nan; lower learning_rate"):
        train_quantized(separable_net(), batches(), lambda outputs, _: outputs.mean() * float("nan"), epochs=1)
    with pytest.raises(InvalidArgument, match="one element, not a tensor of shape"):
        train_quantized(separable_net(), batches(), lambda outputs, _: outputs, epochs=1)
    poisoned = [(PIXELS * float("inf"), LABELS)]
    with pytest.raises(InvalidArgument, match="not finite"):
        train_quantized(separable_net(), poisoned, cross_entropy, epochs=1)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train_quantized(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), batches(), cross_entropy, epochs=1)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        result.write(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"old"
    with pytest.raises(InvalidArgument, match="is no directory"):
        result.write(tmp_path / "missing" / "model.onnx")
