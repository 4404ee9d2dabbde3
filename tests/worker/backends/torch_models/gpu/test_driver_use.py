"""While a model is loaded onto a device or unloaded, the event loop launches nothing: the driver might make it wait."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from host_models import BATCHED, context_of

from isochrone.devices.loads import is_loading, loading
from isochrone.errors import ConfigError, ModelFailed
from isochrone.worker.backends.torch import backend
from isochrone.worker.backends.torch.files import LoadedFile, load_file
from isochrone.worker.backends.torch.gpu import loading as gpu_loading
from isochrone.worker.backends.torch.gpu.device import CudaDevice, HostDevice
from isochrone.worker.backends.torch.gpu.loading import load_on_device
from isochrone.worker.backends.torch.gpu.settings import gpu_settings
from isochrone.worker.backends.torch.packages import PACKAGES


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int | None, dict[str, str] | None], None]:
    """Makes ``load`` find a file for a GPU, or for the CPU; ``target``: an AOTInductor package for that target."""

    path = tmp_path / "model.pt2"
    path.touch()

    def offered(gpu: int | None, target: dict[str, str] | None) -> None:
        monkeypatch.setattr(backend, "gpu_of", lambda *_: gpu)
        monkeypatch.setattr(backend, "_model_file", lambda *_: path)
        monkeypatch.setattr(gpu_loading, "compiled_target", lambda path: target)
        monkeypatch.setattr(gpu_loading, "CudaDevice", lambda *_: None)
        monkeypatch.setattr(gpu_loading, "room_for_weights", lambda *_: nullcontext())

    return offered


@pytest.mark.parametrize(
    ("gpu", "target", "expected"),
    [
        (0, {}, [("file", True), ("device", True)]),
        (0, None, [("file", False), ("device", True)]),
        (None, {}, [("file", False)]),
    ],
)
def test_only_a_package_is_read_as_a_part_of_the_load_onto_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    offer: Callable[[int | None, dict[str, str] | None], None],
    gpu: int | None,
    target: dict[str, str] | None,
    expected: list[tuple[str, bool]],
) -> None:
    """Other files are read to the CPU: the models on the GPU are served meanwhile as ever."""
    seen: list[tuple[str, bool]] = []

    def noted(name: str, result: Any) -> Any:
        def function(*_: Any) -> Any:
            seen.append((name, is_loading()))
            return result

        return function

    offer(gpu, target)
    monkeypatch.setattr(backend, "load_file", noted("file", LoadedFile(torch.nn.Identity(), ["x"], [], None)))
    monkeypatch.setattr(backend, "load_on_gpu", noted("device", None))
    backend.load(context_of(BATCHED))
    assert seen == expected
    assert not is_loading()


class Freed:
    """A function of tensors. It notes, when it goes, whether the event loop knows, and no package is being loaded."""

    seen: list[bool]

    def __init__(self, seen: list[bool], *, is_graph: bool = False) -> None:
        self.seen, self.is_graph = seen, is_graph

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :2], x.sum(1, keepdim=True)

    def __del__(self) -> None:
        self.seen.append(is_loading() and (PACKAGES.locked() or self.is_graph))


def test_a_package_with_other_arguments_is_freed_while_its_error_is_reported(
    monkeypatch: pytest.MonkeyPatch, offer: Callable[[int | None, dict[str, str] | None], None]
) -> None:
    seen: list[bool] = []
    offer(0, {})
    monkeypatch.setattr(backend, "load_file", lambda *_: LoadedFile(Freed(seen), [], ["other"], None))
    with pytest.raises(ConfigError, match="expected the arguments of forward: other") as refused:
        backend.load(context_of(BATCHED))
    assert refused.value.__traceback__ is not None
    assert seen == [True]


@pytest.mark.parametrize("gpu", [None, 0])
def test_a_package_whose_arguments_cannot_be_read_is_freed_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: int | None
) -> None:
    import torch._inductor as inductor

    leaf = {"children_spec": []}
    containers = {"children_spec": [{"children_spec": [leaf]}], "context": ""}
    text = json.dumps([1, {"children_spec": [containers, {"children_spec": [], "context": ""}]}])
    seen: list[bool] = []

    def load_package(*_: Any, **options: Any) -> Any:
        package = Freed(seen)
        package.loader = SimpleNamespace(get_call_spec=lambda: [text])  # type: ignore[attr-defined]
        return package

    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr(
            "model/data/aotinductor/model/a_metadata.json",
            json.dumps({"AOTI_DEVICE_KEY": "cpu" if gpu is None else "cuda"}),
        )
    monkeypatch.setattr(inductor, "aoti_load_package", load_package)
    with loading(), pytest.raises(ValueError, match="given containers of them") as refused:
        load_file(torch, tmp_path / "model.pt2", gpu)
    assert refused.value.__traceback__ is not None
    assert seen == [True]


class Failing(Freed):
    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise ModelFailed("thirteen")


def test_a_package_whose_load_fails_is_freed_as_one() -> None:
    """Also by the frames of the error, which had called it."""
    seen: list[bool] = []
    context = context_of(BATCHED)
    file = LoadedFile(Failing(seen), ["x"], [], None)
    with loading(), pytest.raises(ModelFailed, match="thirteen"):
        load_on_device(context, torch, file, (["x"], []), HostDevice(torch), gpu_settings(context), 0)
    assert seen == [True]


class Graphed(HostDevice):
    def __init__(self, seen: list[bool]) -> None:
        super().__init__(torch)
        self._seen = seen

    def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
        return Freed(self._seen, is_graph=True), run()


def test_graphs_and_weights_are_freed_as_a_part_of_the_unload() -> None:
    of_package: list[bool] = []
    of_graphs: list[bool] = []
    context = context_of(BATCHED)
    file = LoadedFile(Freed(of_package), ["x"], [], None)
    executable = load_on_device(context, torch, file, (["x"], []), Graphed(of_graphs), gpu_settings(context), 0)
    del file
    assert not is_loading()
    executable.close()
    assert of_package == [True]
    assert of_graphs == [True] * 20


def test_memory_is_given_back_to_a_gpu_as_a_part_of_the_unload() -> None:
    seen: list[bool] = []
    cuda = SimpleNamespace(
        default_stream=lambda index: None,
        device=lambda index: nullcontext(),
        empty_cache=lambda: seen.append(is_loading()),
    )
    CudaDevice(SimpleNamespace(cuda=cuda), 0).free_cached()
    assert (seen, is_loading()) == ([True], False)
