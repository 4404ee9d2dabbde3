"""The interface of a region of shared memory, whatever it consists of."""

from __future__ import annotations

import abc
from typing import Any, TypeGuard

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import shown


class Region(abc.ABC):
    """Memory of a client that it registered under a name. Offsets are relative to the region's start."""

    #: "system" or "cuda": Triton's names of the kinds in its messages.
    kind: str

    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self.byte_size = byte_size

    def check(self, offset: object, byte_size: object) -> None:
        """Raise ``InvalidArgument`` unless these bytes are in the region."""
        if is_size(offset) and is_size(byte_size) and offset + byte_size <= self.byte_size:
            return
        # Triton's wording.
        wrong = "offset" if not is_size(offset) or offset >= self.byte_size else "offset + byte size"
        raise InvalidArgument(
            f"Invalid {wrong} for shared memory region: {shown(self.name)}: "
            f"asked for {shown(byte_size)} bytes at offset {shown(offset)}, "
            f"the region has {self.byte_size}"
        )

    @abc.abstractmethod
    def read(self, offset: int, byte_size: int) -> memoryview:
        """Bytes in the host's memory: a view of the region, or a copy of what is on a device."""

    @abc.abstractmethod
    def write(self, offset: int, byte_size: int, data: Any) -> int:
        """Write an output's bytes, or its ``DeviceArray``, and return their number.

        More than ``byte_size`` are not written. The data are in the region when this returns.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give up the memory. Called once, when no request uses it."""


def is_size(value: object) -> TypeGuard[int]:
    # REST passes JSON values of any type.
    return type(value) is int and value >= 0
