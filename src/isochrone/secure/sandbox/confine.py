"""Confines this process, for ever, in the one order that works.

Namespaces and their mounts need rights that ``identity`` gives up; Landlock reads the paths of its rules before that,
while every directory is open to it; the filter of system calls comes last, since it forbids all of these.
"""

from __future__ import annotations

import os
import signal

from isochrone.secure.sandbox import identity, limits
from isochrone.secure.sandbox.confinement import Confinement
from isochrone.secure.sandbox.files import landlock, paths, scratch
from isochrone.secure.sandbox.kernel import prctl
from isochrone.secure.sandbox.system_calls import seccomp
from isochrone.secure.sandbox.system_calls.rules import Allowance

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
#: Since this version, Landlock keeps signals from processes outside.
_SCOPED_SIGNALS = 6


def confine(confinement: Confinement, parent: int) -> str:
    """Returns the directory for temporary files; "": there is none. The process must have one thread, which is all that
    Landlock restricts."""
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("this process has more than one thread, and Landlock restricts only the one that asks")
    pid = os.getpid()
    user, searches = _user(confinement, pid)
    limits.apply(confinement.memory_bytes)
    namespaces = scratch.enter_namespaces()
    mounts = scratch.Mounts()
    if namespaces:
        kept = confinement.directory if paths.is_within(confinement.directory, scratch.DIRECTORY) else ""
        mounts = scratch.mount_scratch(os.getuid() if user is None else user, kept)
    rules = None
    if confinement.landlock:
        rules = landlock.ruleset(
            confinement.landlock,
            paths.rules(
                confinement.directory,
                confinement.python,
                pid,
                scratch=mounts.directory,
                network=confinement.network,
                processes=confinement.processes,
            ),
            network=confinement.network,
        )
    if user is not None or namespaces == "user":
        limits.limit_tasks()
    if user is not None:
        identity.become(user, search=searches)
    elif os.geteuid() == 0 or namespaces == "user":
        identity.drop_capabilities()
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # A change of the user clears it, so it comes after that.
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    prctl(_PR_SET_DUMPABLE, 0)
    if rules is not None:
        rules.restrict()
    if confinement.filtered:
        signals = confinement.processes and (user is not None or confinement.landlock >= _SCOPED_SIGNALS)
        seccomp.restrict(
            Allowance(
                pid,
                network=confinement.network,
                processes=confinement.processes,
                changes_files=user is not None or mounts.read_only,
                signals=signals,
            )
        )
    return mounts.directory


def _user(confinement: Confinement, pid: int) -> tuple[int | None, bool]:
    """The user to become, None: it stays as it is; and whether it must be able to enter private directories."""
    user = identity.own_user(pid)
    if user is None or not identity.needs_search(confinement.directory, confinement.python):
        return user, False
    # Without Landlock the capability would open every file, and without the capability nothing could be imported.
    may_search = bool(identity.capabilities() & identity.CAP_DAC_READ_SEARCH)
    return (user, True) if confinement.landlock and may_search else (None, False)
