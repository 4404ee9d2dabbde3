"""Which directories of another user a cache may be in. Pure."""

from __future__ import annotations

import stat
from collections.abc import Set

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def is_trusted(owner: int, group: int, mode: int, own_groups: Set[int]) -> bool:
    """Whether a directory of another user is safe for models: one that root made, and only for us.

    With the sticky bit nobody can replace the folders that are ours in it. With the setgid bit and a group of ours it
    is a volume that a container platform made for this pod (Kubernetes' fsGroup): an emptyDir has then mode 2777.
    """
    if owner != _ROOT:
        return False
    if not mode & OTHERS_WRITE or mode & stat.S_ISVTX:
        return True
    return bool(mode & stat.S_ISGID) and group in own_groups
