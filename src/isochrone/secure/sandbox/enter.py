"""The first program of a confined process: ``python -m isochrone.secure.sandbox.enter FILE PARENT MODULE ARGUMENTS``.

It confines itself, and then runs ``main`` of the module in this same process.
"""

from __future__ import annotations

import importlib
import os
import sys

from isochrone.secure.sandbox import explained
from isochrone.secure.sandbox.confine import confine
from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.environment import with_directory

#: As of sysexits.h: the process lacks a permission that its confinement needs.
_NOT_CONFINED = 77


def main(arguments: list[str]) -> int:
    descriptor, parent, module, *rest = arguments
    with os.fdopen(int(descriptor), "rb") as file:
        confinement = Confinement.decoded(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    try:
        scratch = confine(confinement, int(parent))
    except Exception as error:
        # Nothing of the model runs in a process that is not confined.
        print(f"model '{confinement.model}': its process cannot be confined: {error}", file=sys.stderr)
        return _NOT_CONFINED
    os.environ.update(with_directory(scratch))
    explained.confinement = confinement
    status: int = importlib.import_module(module).main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
