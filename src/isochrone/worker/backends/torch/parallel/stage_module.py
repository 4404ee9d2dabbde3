"""The part of a module that one rank calls: all of it, or some children of an ``nn.Sequential``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class StageModule(torch.nn.Module):  # type: ignore[misc]
    """Calls children one after the other. The first may take several inputs, which ``nn.Sequential`` does not allow."""

    def __init__(self, children: Sequence[Any]) -> None:
        super().__init__()
        self.run = torch.nn.ModuleList(children)

    def forward(self, *positional: Any, **keywords: Any) -> Any:
        first, *others = self.run
        value = first(*positional, **keywords)
        for child in others:
            value = child(value)
        return value
