"""What holds for the process of one model, in a form that passes to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Confinement:
    """One process of a model."""

    #: The model, for errors.
    model: str
    #: Its directory, which the process may read.
    directory: str
    #: Directories of the interpreter and its packages, without links.
    python: tuple[str, ...]
    #: Largest private memory of the process.
    memory_bytes: int
    network: bool = False
    #: Whether it may start processes and programs.
    processes: bool = False
    #: The version of Landlock to use; 0: none.
    landlock: int = 0
    #: Whether system calls are filtered.
    filtered: bool = True

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Confinement:
        fields = json.loads(data)
        return cls(**{**fields, "python": tuple(fields["python"])})
