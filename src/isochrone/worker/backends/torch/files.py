"""Loads the files of torch models: TorchScript, exported programs and AOTInductor packages.

Each function returns the callable with the names of its positional and keyword arguments, by which ``backend`` matches
the inputs.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError
from isochrone.worker.backends.torch.cpu_reading import reading_to_cpu
from isochrone.worker.backends.torch.instruction_sets import unchecked_instruction_sets
from isochrone.worker.backends.torch.logged_errors import logged_errors_raised
from isochrone.worker.backends.torch.packages import (
    PACKAGES,
    check_room_to_extract,
    compiled_target,
    cpu_features,
    dropping,
    has_own_runtime,
    misfit,
)
from isochrone.worker.backends.torch.quiet_warnings import quiet_warnings
from isochrone.worker.backends.torch.unlocked_file import UnlockedFile, records_in_place
from isochrone.worker.backends.torch.unpickling import without_unpickling
from isochrone.worker.backends.torch.weights import free_weights


@dataclass(slots=True)
class LoadedFile:
    """A model as its file holds it: on the CPU, except an AOTInductor package, which is on its device."""

    call: Callable[..., Any] | None
    #: Names of the arguments of ``forward``.
    positional: list[str]
    keywords: list[str]
    #: Moves the weights to another device: a torch module there; ``call`` has none any more. None: a package, which
    #: cannot be moved.
    to_device: Callable[[str], Any] | None = None
    #: Bytes of tensors that are neither parameters nor buffers of the module: constants of an exported program.
    constant_bytes: int = 0

    def release(self) -> None:
        """Frees a model that is not used. Callers of a load that failed still hold this object."""
        with dropping(self.call):
            self.call = self.to_device = None


def load_file(torch: Any, path: Path, gpu: int | None = None) -> LoadedFile:
    """Loads a file; ``gpu``: for an instance on that device."""
    if path.suffix != ".pt2":
        return _scripted(torch, path)
    target = compiled_target(path)
    return _exported(torch, path) if target is None else _compiled(path, target, gpu)


def _exported(torch: Any, path: Path) -> LoadedFile:
    # torch 2.11 warns of its own way to read weights.
    with (
        quiet_warnings(),
        logged_errors_raised(),
        UnlockedFile(path) as file,
        records_in_place(torch, path),
        reading_to_cpu(torch),
        without_unpickling(torch),
    ):
        program = torch.export.load(file)
    positional, keywords = program.call_spec.in_spec.children()
    names = list(program.graph_signature.user_inputs)
    if len(names) != positional.num_children + keywords.num_children:
        raise ValueError(f"expected tensors as arguments of forward, given {program.call_spec.in_spec}")

    module = program.module()

    def to_device(device: str) -> Any:
        from torch.export.passes import move_to_device_pass

        # Also the devices that are written into the graph, as in torch.zeros(..., device="cpu").
        moved = move_to_device_pass(program, device).module()
        free_weights(module)
        # The module has them.
        program.state_dict.clear()
        program.constants.clear()
        return moved

    buffers = {name for name, _ in module.named_buffers()}
    constants = [value for name, value in program.constants.items() if name not in buffers and torch.is_tensor(value)]
    constant_bytes = sum(value.numel() * value.element_size() for value in constants)
    keyword_names = list(keywords.context or ())
    return LoadedFile(module, names[: positional.num_children], keyword_names, to_device, constant_bytes)


def _compiled(path: Path, target: dict[str, str], gpu: int | None) -> LoadedFile:
    device = "cpu" if gpu is None else "cuda"
    problem = misfit(target, device, platform.machine(), sys.platform, cpu_features())
    if problem is not None:
        expected, given = problem
        raise ConfigError(str(path), "model file", f"{expected}: compile it for this machine", given)
    if sys.platform == "linux" and has_own_runtime(path):
        expected = "a package that uses the shared libstdc++: compile it where the compiler finds libstdc++.so"
        raise ConfigError(
            str(path), "model file", expected, "one that contains libstdc++, which crashes torch's loader"
        )
    # Compiled code does not check shapes: the configuration's dims are the check. AOTI_RUNTIME_CHECK_INPUTS=1 in the
    # environment would make it check, and then reject a single row where rows are free.
    # Not imported with torch itself.
    import torch._inductor as inductor

    with PACKAGES, unchecked_instruction_sets():
        check_room_to_extract(path)
        if gpu is None:
            model = inductor.aoti_load_package(str(path))
        else:
            # Without its locks, which a graph cannot capture: one thread at a time calls an instance.
            model = inductor.aoti_load_package(str(path), run_single_threaded=True, device_index=gpu)
        try:
            positional, keywords = _call_spec(model.loader.get_call_spec()[0])
        except BaseException:
            model = None  # dropped here, with the lock
            raise
    return LoadedFile(model, positional, keywords)


def _call_spec(text: str) -> tuple[list[str], list[str]]:
    """The arguments of a package. It keeps no names of positional ones: they are numbered."""
    _, spec = json.loads(text)
    positional, keywords = spec["children_spec"]
    if any(child["children_spec"] for child in (*positional["children_spec"], *keywords["children_spec"])):
        raise ValueError("expected tensors as arguments of forward, given containers of them")
    names = [f"argument__{number}" for number in range(len(positional["children_spec"]))]
    return names, [str(name) for name in json.loads(keywords["context"] or "null") or ()]


def _scripted(torch: Any, path: Path) -> LoadedFile:
    # TorchScript is deprecated; an operator who serves such a file cannot change that here.
    with quiet_warnings():
        module = torch.jit.load(str(path), map_location="cpu").eval()
    return LoadedFile(module, [argument.name for argument in module.forward.schema.arguments[1:]], [], module.to)
