"""The mounts of one process: everything read-only, and a private file system in memory for temporary files.

The latter is mounted over /dev/shm in a mount namespace of the process: nothing appears outside, the shared memory of
others is out of sight by any name, its size is limited, and it ends with the process. A process that is not root needs
a user namespace for that, which some systems forbid; then it has no place to write.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from isochrone.secure.sandbox.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    mount,
    mount_everything_read_only,
    unshare,
)

DIRECTORY = "/dev/shm"
_BYTES = 64 << 20
_FILES = 4096


def enter_namespaces() -> str:
    """ "root", "user" (a user namespace, in which this process may mount), or "" if neither is possible."""
    try:
        unshare(CLONE_NEWNS | CLONE_NEWIPC)
        return "root"
    except OSError:
        pass
    user, group = os.getuid(), os.getgid()
    if user == 0:
        # A user namespace would keep it root.
        return ""
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        return "user"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Mounts:
    """What the process sees."""

    #: Its directory for temporary files; "": it has none.
    directory: str = ""
    #: Whether everything else is read-only. Landlock bounds what is written, but not rights and times of files.
    read_only: bool = False


def mount_scratch(user: int, model: str = "") -> Mounts:
    """In namespaces of its own: mounts it for ``user``, where that is possible. ``model``: a directory below
    ``DIRECTORY`` that stays in its place, such as that of a decrypted model; "": there is none."""
    try:
        mount("none", "/", "none", MS_REC | MS_PRIVATE)
    except OSError:
        return Mounts()
    try:
        mount_everything_read_only()
        read_only = True
    except OSError:  # before Linux 5.12
        read_only = False
    kept = os.open(model, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if model else None
    try:
        return _mount_over(user, read_only, model, kept)
    finally:
        if kept is not None:
            os.close(kept)


def _mount_over(user: int, read_only: bool, model: str, kept: int | None) -> Mounts:
    options = f"size={_BYTES},nr_inodes={_FILES},mode=0700,uid={user}"
    try:
        mount("tmpfs", DIRECTORY, "tmpfs", MS_NOSUID | MS_NODEV, options)
    except OSError:
        return Mounts("", read_only)
    if kept is not None:
        # The way to it is new; the private directories above it are out of sight.
        os.makedirs(model, mode=0o755)
        mount(f"/proc/self/fd/{kept}", model, "none", MS_BIND)
    return Mounts(DIRECTORY, read_only)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
