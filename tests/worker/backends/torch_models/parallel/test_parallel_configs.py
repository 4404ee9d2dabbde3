"""What a model with ranks may ask for, what its files must hold, how one rank runs it. No rank is a process here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from config_text import parameter
from load_contexts import MakeContext
from parallel_models import ENCODER, ENCODER_CONFIG, MLP, MLP_CONFIG, ranks, write_model
from safetensors.torch import load_file, save_file

from isochrone.errors import ConfigError
from isochrone.models.configuration.backends import default_model_files
from isochrone.models.instances import configured_instances
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.backend import TorchExecutable, load
from isochrone.worker.backends.torch.parallel.module_loading import build
from isochrone.worker.backends.torch.parallel.plan import Shares
from isochrone.worker.backends.torch.parallel.settings import parallel_settings, rank_gpus


def built(context: LoadContext) -> None:
    build(context, parallel_settings(context)).source.imported.remove()


def test_one_rank_is_a_model_inside_the_worker(tmp_path: Path, make_context: MakeContext) -> None:
    module = write_model(tmp_path, ENCODER)
    executable = load(make_context(ENCODER_CONFIG + ranks(1, 1)))
    assert isinstance(executable, TorchExecutable)
    generator = np.random.default_rng(1)
    ids, scale = generator.integers(0, 50, (3, 6)), generator.uniform(0.5, 2, (3, 6)).astype(np.float32)
    with torch.no_grad():
        value = module[0](torch.from_numpy(ids), torch.from_numpy(scale))
        for child in module[1:]:
            value = child(value)
    given = executable.execute({"ids": ids, "scale": scale}, None)
    np.testing.assert_allclose(given["scores"], value["scores"].numpy(), rtol=1e-5, atol=1e-6)
    executable.close()


def test_parameters_have_no_memory_until_they_are_read(tmp_path: Path, make_context: MakeContext) -> None:
    """And each rank reads its own slices: together they are the whole."""
    write_model(tmp_path)
    context = make_context(MLP_CONFIG + ranks(2, 2))
    whole = load_file(str(tmp_path / "model.safetensors"))
    shares = []
    for number in range(2):
        model = build(context, parallel_settings(context))
        assert all(parameter.is_meta for parameter in model.source.module.parameters())
        assert model.cuts == [2]
        stage = model.load(1, Shares(2, number, None, "cpu"), "cpu")
        assert not any(parameter.is_meta for parameter in stage.parameters())
        shares.append(stage.run[0])
    first, second = shares
    torch.testing.assert_close(torch.cat((first.up.weight, second.up.weight)), whole["2.up.weight"])
    torch.testing.assert_close(torch.cat((first.up.bias, second.up.bias)), whole["2.up.bias"])
    torch.testing.assert_close(torch.cat((first.down.weight, second.down.weight), 1), whole["2.down.weight"])
    # Each rank adds its part of the sum: the bias belongs to one of them.
    torch.testing.assert_close(first.down.bias, whole["2.down.bias"])
    assert second.down.bias is None


def test_tied_weights_are_read_under_one_name(tmp_path: Path, make_context: MakeContext) -> None:
    source = MLP + "\n\nuntied = build\n\n\ndef build():\n    module = untied()\n    "
    source += "module[2].up.weight = module[1].up.weight\n    return module\n"
    module = write_model(tmp_path, source)
    assert len(load_file(str(tmp_path / "model.safetensors"))) == len(module.state_dict()) - 1
    context = make_context(MLP_CONFIG + ranks(1, 1))
    stage = build(context, parallel_settings(context)).load(0, None, "cpu")
    assert stage.run[1].up.weight is stage.run[2].up.weight
    torch.testing.assert_close(stage.run[2].up.weight, module[1].up.weight.detach())


BROKEN_SOURCES = {
    "no build": ("x = 1", r"model.py: build: expected a function .*, given no such name"),
    "not a module": ("def build():\n    return 3", r"build\(\): expected a torch.nn.Module, given a int"),
    "raises": ("def build():\n    raise KeyError('k')", r"given KeyError: 'k' \(model.py:2\)"),
    "does not import": ("import nowhere", r"import: expected no exception, given .*nowhere.* \(model.py:1\)"),
    "not python": ("def build(:", r"import: expected no exception, given .*SyntaxError.* \(model.py:1\)"),
    "plan of nothing": (MLP + "tensor_parallel_plan['9.up'] = 'colwise'", r'plan\["9.up"\]: expected the path'),
    "plan of another layer": (MLP + "tensor_parallel_plan['1'] = 'colwise'", r"expected an nn.Linear for 'colwise'"),
    "unknown style": (MLP + "tensor_parallel_plan['0'] = 'both'", r"expected 'colwise', 'rowwise' or a ParallelStyle"),
    "no style": (MLP + "tensor_parallel_plan['0'] = 3", r"a ParallelStyle of torch.distributed.tensor.parallel, given"),
    "no plan": (MLP + "tensor_parallel_plan = {}", r"tensor_parallel_plan: expected paths of modules.*given none"),
    "a list": (MLP + "tensor_parallel_plan = []", r"tensor_parallel_plan: expected a dict"),
    "indivisible": (
        MLP + "tensor_parallel_plan['4'] = 'colwise'",
        r"expected out_features that tensor_parallel = 2 divides, given '4': 3",
    ),
}


@pytest.mark.parametrize("name", BROKEN_SOURCES)
def test_errors_of_a_source_name_the_place(tmp_path: Path, make_context: MakeContext, name: str) -> None:
    source, message = BROKEN_SOURCES[name]
    write_model(tmp_path)
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        built(make_context(MLP_CONFIG + ranks(2, 1)))


def test_errors_of_files_name_them(tmp_path: Path, make_context: MakeContext) -> None:
    context = make_context(MLP_CONFIG + ranks(2, 1))
    with pytest.raises(ConfigError, match=r"model.py: model file: expected a python file"):
        built(context)
    write_model(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(str(file))
    left = {name: tensor for name, tensor in weights.items() if name != "1.up.bias"}
    save_file(left, str(file))
    with pytest.raises(ConfigError, match=r"model.safetensors: tensor '1.up.bias': expected .*given no such tensor"):
        built(context)
    save_file(weights | {"1.up.bias": torch.zeros(7)}, str(file))
    with pytest.raises(ConfigError, match=r"tensor '1.up.bias': expected shape \[64\], given \[7\]"):
        built(context)
    save_file(weights | {"other": torch.zeros(7)}, str(file))
    with pytest.raises(ConfigError, match=r"tensor 'other': expected the tensors of build\(\)'s module"):
        built(context)
    file.write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match=r"weights: expected a file of safetensors"):
        built(context)
    file.unlink()
    with pytest.raises(ConfigError, match=r"weights: expected a file of safetensors, given no such file"):
        built(context)


REJECTED = {
    "tensor_parallel": (ranks(0, 1), "tensor_parallel.*an integer >= 1"),
    "too many": (ranks(8, 9), "at most 64 ranks"),
    "stages": (ranks(1, 6), "pipeline_parallel.*at most 5, the children"),
    "cuts": (ranks(1, 3) + parameter("pipeline_cuts", "3"), "pipeline_cuts.*2 rising numbers"),
    "falling cuts": (ranks(1, 3) + parameter("pipeline_cuts", "3,2"), "pipeline_cuts.*2 rising numbers"),
    "words": (ranks(1, 3) + parameter("pipeline_cuts", "a,b"), "pipeline_cuts.*2 rising numbers"),
    "large cuts": (ranks(1, 3) + parameter("pipeline_cuts", "3,5"), "pipeline_cuts.*numbers below 5"),
    "cuts of one": (ranks(2, 1) + parameter("pipeline_cuts", "3"), "pipeline_cuts.*0 rising numbers"),
    "thread": (ranks(2, 1) + parameter("isolation", "thread"), "isolation.*ranks are processes"),
    "compile": (ranks(2, 1) + parameter("compile", "default"), "compile.*more than one rank"),
    "decoupled": (ranks(1, 1) + "model_transaction_policy { decoupled: true }", "decoupled.*one answer"),
    "sequences": (ranks(2, 1) + "sequence_batching { }", "sequence_batching.*state of sequences"),
    "graphs": (ranks(2, 1) + "optimization { cuda { graphs: true } }", "graphs.*not captured"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_settings_that_cannot_work_are_rejected(tmp_path: Path, make_context: MakeContext, name: str) -> None:
    text, message = REJECTED[name]
    write_model(tmp_path)
    with pytest.raises(ConfigError, match=message):
        built(make_context(MLP_CONFIG + text))


def test_a_pipeline_needs_a_sequential_module(tmp_path: Path, make_context: MakeContext) -> None:
    source = "from torch import nn\n\n\ndef build():\n    return nn.Linear(8, 3)\n"
    write_model(tmp_path, source)
    with pytest.raises(ConfigError, match=r"a build\(\) that returns an nn.Sequential"):
        built(make_context(MLP_CONFIG + ranks(1, 2)))


def test_buffers_are_those_of_the_file_or_of_build(tmp_path: Path, make_context: MakeContext) -> None:
    source = """
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("made", torch.rand(3), persistent=False)

    def forward(self, x):
        return x * self.kept + self.made


def build():
    return nn.Sequential(nn.Linear(8, 3), Scaled())
"""
    write_model(tmp_path, source)
    weights = load_file(str(tmp_path / "model.safetensors"))
    save_file(weights | {"1.kept": torch.arange(3.0)}, str(tmp_path / "model.safetensors"))
    context = make_context(MLP_CONFIG + ranks(1, 2))
    settings = parallel_settings(context)
    first, second = (build(context, settings).load(1, None, "cpu").run[0] for _ in range(2))
    torch.testing.assert_close(first.kept, torch.arange(3.0))
    # Random numbers of build() are the same in every rank.
    torch.testing.assert_close(first.made, second.made)
    save_file(
        {name: tensor for name, tensor in weights.items() if name != "1.kept"}, str(tmp_path / "model.safetensors")
    )
    with pytest.raises(ConfigError, match=r"tensor '1.kept': expected .*persistent=False"):
        built(context)


def test_an_instance_of_several_ranks_has_several_gpus(make_context: MakeContext) -> None:
    text = 'backend: "pytorch"' + MLP_CONFIG + ranks(2, 1)
    context = make_context(text + "instance_group { kind: KIND_GPU count: 1 gpus: [ 0, 1, 2, 3 ] }")
    instances = configured_instances(context.config)
    assert [instance.gpu for instance in instances] == [0, 2]
    layout = parallel_settings(context).layout
    second = dataclasses.replace(context, instance=1, gpu=2)
    assert rank_gpus(dataclasses.replace(context, gpu=0), layout) == [0, 1]
    assert rank_gpus(second, layout) == [2, 3]
    odd = make_context(text + "instance_group { kind: KIND_GPU count: 1 gpus: [ 0, 1, 2 ] }")
    with pytest.raises(ConfigError, match=r"instance_group.gpus: expected 2 different GPUs for each instance"):
        rank_gpus(dataclasses.replace(odd, gpu=0), layout)
    assert default_model_files("torch", context.config) == ("model.py",)
    # Parameters of other backends have meanings of their own.
    other = make_context('backend: "python"' + MLP_CONFIG + ranks(2, 1) + "instance_group { gpus: [ 0, 1 ] count: 1 }")
    assert [instance.gpu for instance in configured_instances(other.config)] == [0, 1]
