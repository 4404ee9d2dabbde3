"""Names for tensors that a model's file leaves unnamed, as a conversion from PyTorch to OpenVINO does.

An unnamed tensor has the name of its position, ``input__0`` or ``output__1``, as in Triton's pytorch backend. A
configuration that declares every tensor may choose other names: they apply in the order of the file. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def position_name(kind: str, position: int) -> str:
    """``kind`` is input or output."""
    return f"{kind}__{position}"


def chosen_names(kind: str, names: Sequence[Collection[str]], declared: Sequence[str]) -> dict[int, str]:
    """The name of every unnamed tensor, by its position in the file.

    ``names`` are those of each tensor in the file, none for an unnamed one; ``declared`` are those of a configuration.
    """
    chosen = {position: position_name(kind, position) for position, own in enumerate(names) if not own}
    known = {name for own in names for name in own} | set(chosen.values())
    others = [name for name in declared if name not in known]
    free = [position for position, name in chosen.items() if name not in declared]
    # A configuration that leaves tensors out does not say which: its names may be misspelt ones of other tensors.
    if len(declared) == len(names) and len(others) == len(free):
        chosen.update(zip(free, others, strict=True))
    return chosen
