"""The protocol's names of numpy types, for errors.

It must stay light to import (no protobuf, no gRPC): the process of an isolated python model starts with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME

if TYPE_CHECKING:
    import numpy as np


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type; numpy's own name where the protocol has none."""
    return next((name for name, known in NUMPY_BY_NAME.items() if known == dtype), str(dtype))
