"""Confines one process before any model is loaded: whether it works here, and what the machine lacks, shows at start.

As a program, ``main`` runs in that process and prints what it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass

from isochrone.errors import FlagError
from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.files import paths
from isochrone.secure.sandbox.launch import launch_of
from isochrone.secure.sandbox.support import Support

_SECONDS = 30.0
_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Trial:
    """What a confined process has on this machine."""

    #: Whether it has a user of its own, which only a worker that is root can give it.
    own_user: bool
    #: Whether it has a private directory for temporary files.
    temporary_files: bool

    def lacks(self) -> list[str]:
        """What it does without, for people."""
        found = []
        if not self.own_user:
            found.append("a user of its own (the worker is not root, or may not change users)")
        if not self.temporary_files:
            found.append("a place for temporary files (the worker may not mount file systems)")
        return found


def try_out(support: Support) -> Trial:
    """Raises ``FlagError`` if no process can be confined."""
    with tempfile.TemporaryDirectory(prefix="isochrone-sandbox-") as directory:
        confinement = Confinement(
            "trial",
            os.path.realpath(directory),
            paths.own_python_directories(),
            _MEMORY,
            landlock=support.landlock,
            filtered=support.filters,
        )
        with launch_of(__name__, [str(os.getuid())], [], confinement) as launch:
            ended = subprocess.run(
                launch.command,
                env=launch.environment,
                pass_fds=launch.descriptors,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
    if ended.returncode:
        given = ended.stderr.decode(errors="replace").strip() or f"a process that ended with {ended.returncode}"
        raise FlagError("--sandbox", "a machine on which the process of a model can be confined", given)
    return Trial(**json.loads(ended.stdout))


def main(arguments: list[str]) -> int:
    (user,) = arguments
    print(json.dumps({"own_user": os.getuid() != int(user), "temporary_files": os.path.isdir(os.environ["TMPDIR"])}))
    return 0
