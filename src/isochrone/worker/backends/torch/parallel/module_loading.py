"""Loads the part of a model that one rank has: builds, divides, reads weights."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isochrone.errors import ConfigError
from isochrone.worker.backends import parameters
from isochrone.worker.backends.torch.arguments import input_names
from isochrone.worker.backends.torch.parallel import plan as plans
from isochrone.worker.backends.torch.parallel.layout import balanced_cuts, children_of
from isochrone.worker.backends.torch.parallel.module_source import (
    ModuleSource,
    forward_arguments,
    is_sequential,
    read_source,
)
from isochrone.worker.backends.torch.parallel.shards import Weights
from isochrone.worker.backends.torch.parallel.stage_module import StageModule

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.parallel.settings import ParallelSettings


@dataclass(slots=True)
class BuiltModule:
    """A whole module without weights, checked against its plan and its file of weights."""

    source: ModuleSource
    weights: Weights
    styles: dict[str, Any]
    #: The first child of every stage but the first.
    cuts: list[int]
    #: Names of the arguments of ``forward``.
    positional: list[str]
    keywords: list[str]

    def load(self, stage: int, shares: plans.Shares | None, device: str) -> Any:
        """The module of a stage with its weights on ``device``; ``shares``: how its ranks share it, if they do.

        What ``model.py`` imported from its directory lives as long as this module.
        """
        module: Any = self.source.module
        if is_sequential(module):
            children = list(module.named_children())
            own = [children[number] for number in children_of(stage, self.cuts, len(children))]
            parts: dict[str, Any] = {}
            for name, child in own:
                parts |= {f"{name}.{path}" if path else name: part for path, part in child.named_modules()}
            module = StageModule([child for _, child in own])
        else:
            parts = dict(module.named_modules())
        divided = {} if shares is None else plans.apply(self.styles, parts, shares)
        count, number = (1, 0) if shares is None else (shares.count, shares.number)
        self.weights.read_into(parts, divided, count, number, device)
        weakref.finalize(module, self.source.imported.remove).atexit = False
        return module.eval()


def build(context: LoadContext, settings: ParallelSettings) -> BuiltModule:
    """Builds the module and finds out whether it can be divided as the settings ask. Reads no weights."""
    source = read_source(context)
    try:
        weights = Weights(context, source.module)
        styles = plans.styles_by_path(source.path, source.module, source.plan, settings.layout.tensor)
        cuts = _cuts(context, settings, source.module)
        return BuiltModule(source, weights, styles, cuts, *forward_arguments(source.module, len(input_names(context))))
    except BaseException:
        source.imported.remove()
        raise


def _cuts(context: LoadContext, settings: ParallelSettings, module: Any) -> list[int]:
    stages = settings.layout.pipeline
    where, key = parameters.where(context), 'parameters["pipeline_parallel"]'
    if stages == 1:
        return []
    if not is_sequential(module):
        expected = "1, or a build() that returns an nn.Sequential, whose children are the stages"
        raise ConfigError(where, key, expected, f"{stages} with a {type(module).__name__}")
    children = list(module.children())
    if stages > len(children):
        expected = f"at most {len(children)}, the children of build()'s nn.Sequential"
        raise ConfigError(where, key, expected, str(stages))
    if settings.cuts is None:
        return balanced_cuts([_weight_bytes(child) for child in children], stages)
    if settings.cuts[-1] >= len(children):
        expected = f"numbers below {len(children)}, the children of build()'s nn.Sequential"
        parameters.reject(context, "pipeline_cuts", expected, ",".join(map(str, settings.cuts)))
    return list(settings.cuts)


def _weight_bytes(module: Any) -> int:
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in (*module.parameters(), *module.buffers()))
