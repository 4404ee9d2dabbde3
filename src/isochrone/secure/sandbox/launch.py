"""The command line that starts a confined process. What holds for it passes through an anonymous file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.environment import scrubbed

_MODULE = "isochrone.secure.sandbox.enter"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a process."""

    command: list[str]
    descriptors: list[int]
    #: None: that of this process.
    environment: dict[str, str] | None = None


@contextmanager
def launch_of(
    module: str, arguments: Sequence[str], descriptors: Sequence[int], confinement: Confinement | None
) -> Iterator[Launch]:
    """Of ``module`` with a function ``main(arguments) -> int``; start it before the context ends."""
    # -P: the working directory must not come before installed packages.
    # -u: the output of a model that crashes is not lost in a buffer.
    python = [sys.executable, "-P", "-u", "-m"]
    if confinement is None:
        yield Launch([*python, module, *arguments], list(descriptors))
        return
    sent = os.memfd_create("isochrone-confinement", os.MFD_CLOEXEC)
    try:
        os.pwrite(sent, confinement.encoded(), 0)
        command = [*python, _MODULE, str(sent), str(os.getpid()), module, *arguments]
        yield Launch(command, [*descriptors, sent], scrubbed(os.environ))
    finally:
        os.close(sent)
