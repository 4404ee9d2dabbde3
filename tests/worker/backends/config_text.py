"""Lines of a config.pbtxt, for tests that build one."""

from __future__ import annotations


def tensors(direction: str, rank: int = 1, **data_types: str) -> str:
    """The lines of a config.pbtxt that declare tensors of any sizes."""
    dims = ", ".join(["-1"] * rank)
    return "\n".join(
        f'{direction} {{ name: "{name}" data_type: TYPE_{data_type} dims: [ {dims} ] }}'
        for name, data_type in data_types.items()
    )


def parameter(key: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{escaped}" }} }}\n'
