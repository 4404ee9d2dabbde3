"""What the kernel of this machine offers to a sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.errors import FlagError
from isochrone.secure.sandbox.files import landlock
from isochrone.secure.sandbox.system_calls import seccomp


@dataclass(frozen=True, slots=True)
class Support:
    """The parts that a sandbox cannot do without."""

    #: The version of Landlock; 0: none.
    landlock: int
    #: Whether system calls can be filtered.
    filters: bool

    def missing(self) -> list[str]:
        """What this machine lacks, for people."""
        lacks = []
        if not self.landlock:
            lacks.append("Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK, lsm=landlock), which bounds files")
        if not self.filters:
            lacks.append("seccomp filters (CONFIG_SECCOMP_FILTER, on x86_64 or aarch64), which bound system calls")
        return lacks


def present_support() -> Support:
    return Support(landlock.version(), seccomp.is_available())


def check(support: Support, *, best_effort: bool) -> list[str]:
    """What is missing; raises ``FlagError`` if that is not acceptable."""
    missing = support.missing()
    if missing and not best_effort:
        raise FlagError(
            "--sandbox",
            "a kernel that can confine models, --sandbox-best-effort to do with less, or --no-sandbox",
            f"one that lacks {' and '.join(missing)}",
        )
    return missing
