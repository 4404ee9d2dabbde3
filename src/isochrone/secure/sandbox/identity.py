"""A user of its own for the process of a model, where the worker runs as root.

Its number is made of the process's, so no two processes of a machine have the same. All capabilities go, except one: a
user that has no name cannot enter a private directory such as /root, where the interpreter or the repository may be.
Where that is the case it keeps CAP_DAC_READ_SEARCH, and Landlock alone bounds what it reads.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from isochrone.secure.sandbox.kernel import prctl, system_call

#: Above what systems and containers give to users.
_FIRST_USER = 0x60000000
CAP_DAC_READ_SEARCH, _CAP_SETGID, _CAP_SETUID = 1 << 2, 1 << 6, 1 << 7
_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION_3 = 0x20080522
#: Files of a model's directory that are looked at.
_MOST_FILES = 10_000


def capabilities() -> int:
    """The effective capabilities of this process, as bits."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def own_user(pid: int) -> int | None:
    """The user that this process can become; None: it is not root, or may not change its user."""
    needed = _CAP_SETUID | _CAP_SETGID
    return _FIRST_USER + pid if os.geteuid() == 0 and capabilities() & needed == needed else None


def needs_search(model: str, directories: Iterable[str]) -> bool:
    """Whether a user without rights cannot read these directories and all files of the model."""
    return not (all(_is_open(each) for each in directories) and _is_open(model) and _all_open(model))


def become(user: int, *, search: bool) -> None:
    """Drops root for ever; ``search``: keeps CAP_DAC_READ_SEARCH."""
    keeps = search and bool(capabilities() & CAP_DAC_READ_SEARCH)
    if keeps:
        prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    drop_capabilities(CAP_DAC_READ_SEARCH if keeps else 0)


def drop_capabilities(kept: int = 0) -> None:
    """All but ``kept``, of which the lower 32 bits count."""
    from isochrone.secure.sandbox.system_calls.numbers import present_architecture

    architecture = present_architecture()
    if architecture is None:
        return
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("=6I", kept, kept, 0, 0, 0, 0)
    system_call(
        architecture.numbers["capset"],
        ctypes.create_string_buffer(header, len(header)),
        ctypes.create_string_buffer(data, len(data)),
    )


def _is_open(path: str) -> bool:
    """Whether everybody may enter a directory and list it."""
    try:
        while True:
            mode = os.stat(path).st_mode
            if not mode & stat.S_IXOTH:
                return False
            if (parent := os.path.dirname(path)) == path:
                return True
            path = parent
    except OSError:
        return False


def _all_open(model: str) -> bool:
    seen = 0
    for directory, folders, files in os.walk(model):
        for name in (*folders, *files):
            seen += 1
            try:
                mode = os.stat(os.path.join(directory, name)).st_mode
            except OSError:
                return False
            wanted = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
            if mode & wanted != wanted or seen > _MOST_FILES:
                return False
    return True
