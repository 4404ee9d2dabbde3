"""What a model's file declares of its tensors, whatever the format of the file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileTensor:
    name: str
    datatype: str
    shape: tuple[int, ...]
    """The whole shape in the file; -1 is a free size."""
    is_named: bool = True
    """Whether the name is the file's; otherwise it is that of the position (see ``unnamed_tensors``)."""


#: Inputs and outputs.
Declared = tuple[tuple[FileTensor, ...], tuple[FileTensor, ...]]
