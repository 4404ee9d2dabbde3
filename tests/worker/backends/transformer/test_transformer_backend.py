"""Loading by config.pbtxt: parameters, devices, what is refused, and memory that is freed."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient.grpc import model_config_pb2

from compared_steps import TOLERANCES, deviation
from generation_models import SampleModel, context_for
from isochrone.devices import losses
from isochrone.errors import ConfigError, ModelFailed, Unsupported
from isochrone.models.configuration.validation import _validate_gpu
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.generative import Chosen, FailedRow, GenerationLimits, Row, Sampling
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.registry import loader
from isochrone.worker.backends.transformer.backend import TransformerExecutable, load
from isochrone.worker.backends.transformer.checkpoint.fields import read_fields
from isochrone.worker.backends.transformer.checkpoint.shape import shape_of
from isochrone.worker.backends.transformer.settings import Settings, device_of, settings_of

CPU = "instance_group { kind: KIND_CPU }"


def settings_for(directory: Path, gpus: int, config: str = "", **parameters: str) -> Settings:
    shape = shape_of(read_fields(directory / "config.json", required=True))
    return settings_of(context_for(directory, config, **parameters), shape, gpus)


def test_limits_follow_the_parameters(sample_model: SampleModel) -> None:
    executable = loader("generation")(
        context_for(
            sample_model("llama"),
            CPU,
            max_context="80",
            block_tokens="8",
            kv_cache_tokens="165",
            max_rows="3",
            prefill_tokens="32",
        )
    )
    assert executable.limits == GenerationLimits(80, 8, 20, 3, 32)  # type: ignore[attr-defined]
    assert (executable.decoupled, executable.inline_allowed, executable.warms_up) == (True, False, False)
    with pytest.raises(Unsupported):
        executable.execute({}, None)
    executable.close()


def test_defaults(sample_model: SampleModel) -> None:
    executable = load(context_for(sample_model("llama"), CPU))
    assert executable.limits == GenerationLimits(96, 16, 96, 64, 512)
    assert executable.tokenizer.end_tokens == {1}
    executable.close()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # torch's word on CPUs without instructions for bfloat16
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types(sharp_model: SampleModel, dtype: str) -> None:
    tokens = list(range(40, 60))
    executable = load(context_for(sharp_model("qwen2"), CPU, dtype=dtype))
    executable.launch([Row(tokens, 0, [4, 9], Sampling(temperature=0.0))])
    (chosen,) = executable.collect()
    executable.close()
    assert isinstance(chosen, Chosen)
    assert deviation(sharp_model("qwen2"), tokens, chosen) < TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_context": "97"}, r'parameters\["max_context"\]: expected at most 96'),
        ({"max_context": "1"}, "an integer >= 2"),
        ({"block_tokens": "12"}, "a power of two up to 256, given '12'"),
        ({"dtype": "int8"}, "one of auto, float32, bfloat16, float16"),
        ({"attention": "paged"}, "'gather', or a GPU and bfloat16 or float16, given 'paged' on cpu in float32"),
        ({"kv_cache_fraction": "2"}, "a number above 0 and at most 1"),
        ({"kv_cache_fraction": "much"}, "a number above 0 and at most 1"),
        ({"max_rows": "0"}, "an integer >= 1"),
        ({"prefill_tokens": "1"}, "an integer >= 2"),
        ({"kv_cache_tokens": "1000000000000"}, "memory: expected a model that fits.*cache .* GiB.*free"),
    ],
)
def test_refused_parameters(sample_model: SampleModel, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(context_for(sample_model("llama"), CPU, **parameters))


@pytest.mark.parametrize(
    ("config", "gpus", "device"),
    [
        ("", 0, "cpu"),
        ("", 2, "cuda:0"),
        (CPU, 2, "cpu"),
        ("instance_group { kind: KIND_AUTO }", 0, "cpu"),
        ("instance_group { kind: KIND_AUTO }", 1, "cuda:0"),
        ("instance_group { kind: KIND_GPU }", 1, "cuda:0"),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] }", 2, "cuda:1"),
    ],
)
def test_devices(tmp_path: Path, config: str, gpus: int, device: str) -> None:
    assert device_of(context_for(tmp_path, config), gpus) == device


def test_instances_of_one_group_on_two_gpus(tmp_path: Path) -> None:
    context = context_for(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }")
    assert [device_of(replace(context, instance=number), 2) for number in (0, 1)] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_gpu_that_is_not_there(tmp_path: Path, gpus: int) -> None:
    with pytest.raises(ConfigError, match=r"instance_group\.kind: expected a GPU that torch can use, but .* KIND_CPU"):
        device_of(context_for(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 1 ] }"), gpus)


def test_what_a_gpu_runs_by_default(sample_model: SampleModel) -> None:
    directory = sample_model("llama")
    half = settings_for(directory, 1, dtype="bfloat16")
    assert (half.device, half.attention, half.cuda_graphs) == ("cuda:0", "paged", True)
    exact = settings_for(directory, 1)
    assert (exact.dtype, exact.attention, exact.cuda_graphs) == ("float32", "gather", False)
    eager = settings_for(directory, 1, dtype="float16", cuda_graphs="false")
    assert (eager.attention, eager.cuda_graphs) == ("paged", False)


def test_a_configuration_may_ask_for_gpus() -> None:
    config = model_config_pb2.ModelConfig()
    group = config.instance_group.add(kind=model_config_pb2.ModelInstanceGroup.KIND_GPU, gpus=[1])
    _validate_gpu(config, "generation", group, "instance_group[0]", "m/config.pbtxt")


def test_close_frees_weights_and_cache(sample_model: SampleModel) -> None:
    executable: Any = load(context_for(sample_model("llama"), CPU))
    executable.warm_steps()
    steps = executable._steps
    held = [weakref.ref(each) for each in (steps, steps._cache, steps._decoder.embedding, steps._logits)]
    del steps
    gc.disable()  # nothing may wait for a collection
    try:
        executable.close()
        assert [each() for each in held] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.0), Sampling(1.0, 5, 0.5, 0.9)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_fail_their_row_alone(
    sample_model: SampleModel, sampling: Sampling, bad: float
) -> None:
    executable: Any = load(context_for(sample_model("llama3"), CPU))
    good = [Row([1], 0, [0], sampling), Row([3, 4, 5], 0, [1], sampling)]
    executable.launch(good)
    expected = executable.collect()
    with torch.inference_mode():
        executable._steps._decoder.embedding[7] = bad
    # Alone, at the beginning and at the end of a prompt, and in a chunk that asks for no token.
    rows = [Row([7], 0, [2], sampling), Row([7, 1], 0, [3], sampling), Row([1, 7], 0, [4], sampling)]
    executable.launch([*rows, *good, Row([7, 7], 0, [5], None)])
    results = executable.collect()
    assert all(isinstance(each, FailedRow) and "logits that are not numbers" in each.reason for each in results[:3])
    assert np.array(results[3:5]) == pytest.approx(np.array(expected), abs=1e-4)
    assert results[5] is None
    # Blocks keep what is not a number; sequences that get them next are not concerned.
    for row, blocks in zip(good, ([5], [2]), strict=True):
        executable.launch([row._replace(blocks=blocks), good[1]._replace(blocks=[3])])
        both = [expected[good.index(row)], expected[1]]
        assert np.array(executable.collect()) == pytest.approx(np.array(both), abs=1e-4)
    executable.close()


def test_a_model_of_weights_that_are_not_numbers_does_not_load(sample_model: SampleModel) -> None:
    executable: Any = load(context_for(sample_model("llama"), CPU))
    with torch.inference_mode():
        executable._steps._decoder.embedding.fill_(float("nan"))
    with pytest.raises(ModelFailed, match="logits that are not numbers"):
        executable.warm_steps()
    executable.close()


def test_an_overflow_stays_with_its_sequence(sample_model: SampleModel) -> None:
    executable: Any = load(context_for(sample_model("llama"), CPU, dtype="float16"))
    greedy, rows = Sampling(temperature=0.0), list(range(40, 45))
    executable.launch([Row(rows, 0, [3], greedy)])
    (before,) = executable.collect()
    with torch.inference_mode():
        kept = executable._steps._decoder.embedding[7].clone()
        executable._steps._decoder.embedding[7] = float("inf")
    executable.launch([Row([7] * 16, 0, [3], None)])
    assert executable.collect() == [None]
    assert torch.isfinite(executable._steps._cache).all()
    with torch.inference_mode():
        executable._steps._decoder.embedding[7] = kept
    executable.launch([Row(rows, 0, [3], greedy)])
    assert executable.collect() == [before]
    executable.close()


@pytest.mark.parametrize("place", ["launch", "collect"])
def test_a_lost_device_is_recorded(sample_model: SampleModel, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executable: Any = load(context_for(sample_model("llama"), CPU))

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    owner, name = (executable._steps, "_compute") if place == "launch" else (executable._steps._results, "wait")
    monkeypatch.setattr(owner, name, fail)
    steps = executable._steps
    kept: list[object] = []
    monkeypatch.setattr(losses, "keep", lambda *objects: kept.extend(objects))
    try:
        executable.launch([Row([1], 0, [0], Sampling())])
        with pytest.raises(DeviceLost, match="an illegal memory access"):
            executable.collect()
        assert losses.is_lost()
        executable.close()
    finally:
        losses.forget()
    assert kept == [steps]
    steps.close()


def test_nothing_of_a_decoder_on_a_lost_device_is_freed(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would end the process."""
    device, calls = "cuda:5", list[str]()
    fake_torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: calls.append("empty_cache")))
    kept: list[object] = []
    monkeypatch.setattr(losses, "keep", lambda *objects: kept.extend(objects))
    for is_lost in (False, True):
        on_cpu: Any = load(context_for(sample_model("llama"), CPU))
        steps, close = on_cpu._steps, on_cpu._steps.close
        monkeypatch.setattr(steps, "close", lambda: calls.append("close"))
        account = Account("writer", "1", 0)
        reservation = ledger_of(device).reserve(account, {Holding.CACHE: 64}, lambda: (1 << 20, 1 << 20))
        executable = TransformerExecutable(fake_torch, steps, on_cpu.limits, on_cpu.tokenizer, device, reservation)
        assert list(ledger_of(device)) == [(account, Holding.CACHE, 64)]
        try:
            losses.record("cuda:7", "not this one")
            if is_lost:
                losses.record(device, "CUDA error: an illegal memory access was encountered")
            executable.close()
        finally:
            losses.forget()
        assert calls == ([] if is_lost else ["close", "empty_cache"])
        assert kept == ([steps] if is_lost else [])
        assert list(ledger_of(device)) == []
        calls.clear()
        close()
