"""The module of a ``model.py``: built without weights, so that each rank can read its own part of them alone.

Parameters become tensors of torch's meta device, which have no memory, as soon as a module gets them. Everything else
that ``build`` computes is real: buffers and plain tensors that the weights' file need not hold, such as rotary tables.
"""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from isochrone.errors import ConfigError
from isochrone.worker.backends.version_modules import VersionModules

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

PLAN = "tensor_parallel_plan"
#: Of the text of an exception: gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST = 2000
#: ``build`` may use random numbers: every rank has to get the same ones.
_SEED = 0


@dataclass(frozen=True, slots=True)
class ModuleSource:
    path: Path
    #: With parameters on the meta device, in evaluation mode.
    module: Any
    #: Module path pattern → style, as ``model.py`` has it.
    plan: Mapping[str, Any]
    #: What was imported from the directory of the version; to be removed when the module is not called any more.
    imported: VersionModules


def read_source(context: LoadContext) -> ModuleSource:
    """Imports ``model.py`` and builds its module."""
    path = context.directory / (context.config.default_model_filename or "model.py")
    if not path.is_file() or path.suffix != ".py":
        raise ConfigError(str(path), "model file", "a python file with a function named build", "no such file")
    modules = VersionModules(context.model_name, context.model_version, context.directory)
    try:
        return _built(path, modules)
    except BaseException:
        modules.remove()
        raise


def _built(path: Path, modules: VersionModules) -> ModuleSource:
    try:
        imported = modules.import_module(path.stem)
    except BaseException as error:
        raise _failure(path, "import", error) from error
    build = getattr(imported, "build", None)
    if not callable(build):
        given = "no such name" if build is None else f"a {type(build).__name__}"
        raise ConfigError(str(path), "build", "a function that returns a torch.nn.Module", given)
    try:
        with torch.random.fork_rng(devices=[]), _parameters_on_meta():
            torch.manual_seed(_SEED)
            module = build()
    except BaseException as error:
        raise _failure(path, "build()", error) from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(str(path), "build()", "a torch.nn.Module", f"a {type(module).__name__}")
    plan = getattr(imported, PLAN, {})
    if not isinstance(plan, Mapping) or not all(isinstance(key, str) for key in plan):
        raise ConfigError(str(path), PLAN, "a dict of module paths and styles", f"a {type(plan).__name__}")
    return ModuleSource(path, module.eval(), dict(plan), modules)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Inside, the parameters of modules that this thread makes have no memory."""
    builder = threading.get_ident()

    def to_meta(_module: Any, _name: str, parameter: Any) -> Any:
        if parameter is None or parameter.is_meta or threading.get_ident() != builder:
            return None
        return torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(to_meta)
    try:
        yield
    finally:
        hook.remove()


def _failure(path: Path, step: str, error: BaseException) -> ConfigError:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f" ({path.name}:{frame.lineno})" for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines = [f" ({path.name}:{error.lineno})"]
    said = f"{type(error).__name__}: {str(error)[:_LONGEST]}{lines[-1] if lines else ''}"
    return ConfigError(str(path), step, "no exception", said)


def is_sequential(module: Any) -> bool:
    """Whether calling a module is calling its children one after the other."""
    return isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward


def forward_arguments(module: Any, inputs: int) -> tuple[list[str], list[str]]:
    """Names of the positional and the keyword arguments of a module's ``forward``, for so many inputs."""
    first = next(iter(module.children()), module) if is_sequential(module) else module
    positional: list[str] = []
    keywords: list[str] = []
    for name, argument in inspect.signature(first.forward).parameters.items():
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD):
            positional.append(name)
        elif argument.kind is argument.KEYWORD_ONLY:
            keywords.append(name)
        elif argument.kind is argument.VAR_POSITIONAL:
            positional += [f"argument__{number}" for number in range(len(positional), inputs)]
    return positional, keywords
