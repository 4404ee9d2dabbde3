"""Models that torch.compile compiles, on the CPU: which errors a load reports, and that each size is compiled."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from host_models import BATCHED, context_of, loaded

from isochrone.devices import losses
from isochrone.errors import ConfigError, Unavailable
from isochrone.worker.backends.devices.memory_ledger import ledger_of
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.torch.error_text import compiler_error_line, error_line
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.loading import room_for_package
from isochrone.worker.backends.torch.gpu.settings import gpu_settings
from isochrone.worker.backends.torch.quiet_warnings import quiet_warnings

COMPILED = BATCHED + 'parameters { key: "compile" value { string_value: "default" } }\n'
GRAPHS = "optimization { cuda { graphs: true } }\n"
NO_COMPILER = "Failed to find C compiler. Please specify via CC environment variable."

Backend = Callable[[Any, list[Any]], Any]


class Doubled(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :2] * 2, x.sum(1, keepdim=True)


@pytest.fixture
def compiled_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Backend], None]]:
    """torch.compile with a backend of the test's own in the place of inductor, which takes seconds."""
    real = torch.compile
    torch._dynamo.reset()

    def use(backend: Backend) -> None:
        def compile_(module: Any, *, mode: str, **options: Any) -> Any:
            assert mode == "default"
            return real(module, backend=backend, **options)

        monkeypatch.setattr(torch, "compile", compile_)

    yield use
    torch._dynamo.reset()


def raising(error: Exception) -> Backend:
    def backend(graph: Any, inputs: list[Any]) -> Any:
        raise error

    return backend


@pytest.mark.parametrize("config", [COMPILED, COMPILED + GRAPHS])
def test_a_model_that_torch_cannot_compile_fails_to_load_with_the_cause(
    compiled_by: Callable[[Backend], None], config: str
) -> None:
    compiled_by(raising(RuntimeError(NO_COMPILER + "\nmore\n")))
    with pytest.raises(ConfigError) as refused:
        loaded(config, Doubled())
    assert refused.value.key == 'parameters["compile"]'
    assert refused.value.given == f"default; torch: RuntimeError: {NO_COMPILER}"
    assert not list(ledger_of("cpu"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), Unavailable),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLost),
    ],
)
def test_what_a_device_lacks_or_loses_while_it_compiles_keeps_its_kind(
    compiled_by: Callable[[Backend], None], error: Exception, kind: type[Exception]
) -> None:
    compiled_by(raising(error))
    try:
        with pytest.raises(kind):
            loaded(COMPILED, Doubled())
    finally:
        losses.forget()


class Uncapturable(HostDevice):
    def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might …")


@pytest.mark.parametrize(
    ("config", "key", "given"),
    [
        (COMPILED, 'parameters["compile"]', "default"),
        (COMPILED + GRAPHS, "optimization.cuda.graphs", "true"),
        (BATCHED + GRAPHS, "optimization.cuda.graphs", "true"),
    ],
)
def test_a_compiled_model_never_runs_without_its_graphs(
    compiled_by: Callable[[Backend], None], config: str, key: str, given: str
) -> None:
    compiled_by(lambda graph, inputs: graph)
    with pytest.raises(ConfigError, match="or a model that can be captured") as refused:
        loaded(config, Doubled(), Uncapturable(torch))
    assert refused.value.key == key
    assert refused.value.given == f"{given}; torch: CUDA error: operation not permitted when stream is capturing"


def test_more_sizes_than_torch_compiles_by_default_are_all_compiled(compiled_by: Callable[[Backend], None]) -> None:
    """As many as max_batch_size 64 has; the compiler's limit is 8."""
    rows: list[int] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        rows.extend(each.shape[0] for each in inputs)
        return graph

    compiled_by(backend)
    limits = [getattr(torch._dynamo.config, name) for name in ("recompile_limit", "accumulated_recompile_limit")]
    executable = loaded(COMPILED.replace("max_batch_size: 8", "max_batch_size: 64"), Doubled())
    assert executable.graphs is not None
    assert rows == [64, 56, 48, 40, 32, 24, 16, 8, 4, 2, 1]
    assert len(executable.graphs) == len(rows)
    # Those of other code in this process, such as python models.
    assert limits == [
        getattr(torch._dynamo.config, name) for name in ("recompile_limit", "accumulated_recompile_limit")
    ]
    executable.close()


def test_warnings_of_the_compiler_do_not_fail_a_load(compiled_by: Callable[[Backend], None]) -> None:
    """Tests turn warnings into errors, as a server that is started with -W error does."""

    def backend(graph: Any, inputs: list[Any]) -> Any:
        warnings.warn("Please use the new API settings to control TF32 behavior", UserWarning, stacklevel=1)
        return graph

    compiled_by(backend)
    executable = loaded(COMPILED, Doubled())
    assert executable.captured_graphs == 4
    executable.close()
    with pytest.raises(UserWarning, match="as before"):
        warnings.warn("as before", UserWarning, stacklevel=1)


def warned(module: str) -> bool:
    """Whether a warning of that module is an error on another thread."""

    def warn() -> None:
        warnings.warn_explicit("from elsewhere", UserWarning, "file.py", 1, module)

    with ThreadPoolExecutor(1) as pool:
        return isinstance(pool.submit(warn).exception(), UserWarning)


def test_loads_that_overlap_are_quiet_until_they_end() -> None:
    first, second = quiet_warnings(), quiet_warnings()
    with first:
        second.__enter__()
    warnings.warn("quiet", UserWarning, stacklevel=1)
    second.__exit__(None, None, None)
    with pytest.raises(UserWarning, match="loud"):
        warnings.warn("loud", UserWarning, stacklevel=1)


def test_filters_that_another_thread_replaces_during_a_load_stay_as_they_were() -> None:
    others = warnings.catch_warnings()
    with quiet_warnings():
        others.__enter__()
        warnings.warn("quiet", UserWarning, stacklevel=1)
    others.__exit__(None, None, None)
    with pytest.raises(UserWarning, match="loud"):
        warnings.warn("loud", UserWarning, stacklevel=1)


def test_filters_that_another_thread_restores_during_a_load_keep_it_quiet() -> None:
    with quiet_warnings():
        pass  # a load before
    others = warnings.catch_warnings()
    others.__enter__()
    with quiet_warnings():
        others.__exit__(None, None, None)
        warnings.warn("quiet", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="loud"):
        warnings.warn("loud", UserWarning, stacklevel=1)


def test_on_other_threads_a_load_silences_torch_alone() -> None:
    with quiet_warnings():
        assert not warned("torch._inductor.compile_fx")
        assert not warned("triton")
        assert warned("torchvision.models")
        assert warned("model")
    assert warned("torch._inductor.compile_fx")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (COMPILED + "optimization { cuda { graphs: false } }", "none, or optimization.cuda.graphs true"),
        (COMPILED.replace("dims: [ 3 ]", "dims: [ -1 ]"), "none, or input.dims without -1, or an optimization.cuda.gr"),
    ],
)
def test_a_model_without_graphs_cannot_be_compiled(config: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gpu_settings(context_of(config))
    assert (refused.value.key, refused.value.given) == ('parameters["compile"]', "'default'")
    assert refused.value.expected.startswith(expected)


def test_a_package_is_not_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/aotinductor/model/x_metadata.json", "{}")
    with (
        pytest.raises(
            ConfigError, match="expected none for an AOTInductor package, which is compiled, given 'default'"
        ),
        room_for_package(context_of(COMPILED), torch, path, 0),
    ):
        pytest.fail("it was loaded")


def test_code_that_torch_would_compile_in_parts_is_refused(compiled_by: Callable[[Backend], None]) -> None:
    class Broken(Doubled):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            torch._dynamo.graph_break()
            return super().forward(x)

    compiled_by(lambda graph, inputs: graph)
    with pytest.raises(ConfigError, match=r'parameters\["compile"\]: expected none, or a model that torch can compile'):
        loaded(COMPILED, Broken())


class Wrapped(Exception):
    def __init__(self, inner: Exception) -> None:
        super().__init__(f"backend='inductor' raised:\n{inner}")
        self.inner_exception = inner


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("one\ntwo"), "one"),
        (RuntimeError(""), "RuntimeError"),
        (Wrapped(Wrapped(ValueError("within\n\nSet TORCHDYNAMO_VERBOSE=1 for …"))), "within"),
        (
            RuntimeError("C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\nx.cpp:1: fatal error: no Python.h"),
            "x.cpp:1: fatal error: no Python.h",
        ),
        (
            RuntimeError(
                "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent "
                "call last):\n  File …\nRuntimeError: CUDA error: not permitted\nFor debugging consider passing …\n"
            ),
            "RuntimeError: CUDA error: not permitted",
        ),
    ],
)
def test_the_line_that_says_what_is_wrong(error: Exception, line: str) -> None:
    assert error_line(error) == line


def test_errors_of_a_compiler_have_their_kind() -> None:
    assert compiler_error_line(Wrapped(KeyError("name"))) == "KeyError: 'name'"
    assert compiler_error_line(RuntimeError("RuntimeError: said")) == "RuntimeError: said"
