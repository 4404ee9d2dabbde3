"""What a client gets from a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Outputs(dict[str, NDArray[Any]]):
    """The outputs of one response: a dict of name to array, with what else the response says.

    Arrays are views of the received bytes and cannot be written; ``array.copy()`` can. BYTES are object arrays of
    ``bytes``, BF16 has the type ``ml_dtypes.bfloat16``.
    """

    __slots__ = (
        "id",
        "model_name",
        "model_version",
        "parameters",
        "received_bytes",
        "sent_bytes",
        "server_timing",
        "unsent_ns",
    )

    def __init__(
        self,
        outputs: Mapping[str, NDArray[Any]] | None = None,
        *,
        model_name: str = "",
        model_version: str = "",
        id: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(outputs or {})
        self.model_name = model_name
        #: The version that answered.
        self.model_version = model_version
        #: The request's id; "" if it had none.
        self.id = id
        self.parameters: dict[str, Any] = dict(parameters or {})
        #: The header of this name, if the request asked for it with ``x-isochrone-timing``; "": none.
        self.server_timing = ""
        #: Of the bodies as they crossed the network, compressed or not; 0: not known.
        self.sent_bytes = self.received_bytes = 0
        #: The part of the call's time in which the client connected and compressed; None: not known.
        self.unsent_ns: int | None = 0


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output; -1 is a dimension of any size, including the batch's."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type; objects for BYTES."""
        from isochrone.protocol.tensors.datatypes import numpy_of

        return numpy_of(self.datatype)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model as its server describes it."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
