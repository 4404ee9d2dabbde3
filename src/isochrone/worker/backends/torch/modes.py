"""The mode in which torch runs a model: without gradients, and without what inference never needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from isochrone.worker.backends import parameters

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext


def run_mode(context: LoadContext, torch: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context of a run. Models that write to their inputs in place need ``inference_mode: false``."""
    inference = parameters.boolean(context, "inference_mode", True)
    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode if inference else torch.no_grad
    return mode
