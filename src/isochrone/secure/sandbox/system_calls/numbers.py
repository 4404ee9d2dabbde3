"""The numbers of the system calls that ``rules`` names, by architecture.

From asm/unistd_64.h and asm-generic/unistd.h; calls that an architecture lacks are not in its table. From 403 on the
numbers are the same everywhere.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

#: The last call that the rules were written with: removexattrat of Linux 6.13.
HIGHEST = 466

_COMMON = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
}
# fmt: off
_X86_64 = {
    "accept": 43, "accept4": 288, "acct": 163, "add_key": 248, "adjtimex": 159, "bind": 49, "bpf": 321, "capset": 126,
    "chmod": 90, "chown": 92, "chroot": 161, "clock_adjtime": 305, "clock_settime": 227, "clone": 56, "connect": 42,
    "delete_module": 176, "execve": 59, "execveat": 322, "fanotify_init": 300, "fchmod": 91, "fchmodat": 268,
    "fchown": 93, "fchownat": 260, "fcntl": 72, "finit_module": 313, "fork": 57, "fremovexattr": 199,
    "fsetxattr": 190, "futimesat": 261, "init_module": 175, "inotify_add_watch": 254, "ioctl": 16, "ioperm": 173,
    "iopl": 172,
    "ioprio_set": 251, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "kill": 62,
    "lchown": 94, "listen": 50, "lremovexattr": 198, "lsetxattr": 189, "memfd_create": 319, "migrate_pages": 256,
    "mmap": 9, "modify_ldt": 154, "mount": 165, "move_pages": 279, "mq_open": 240, "msgget": 68,
    "open_by_handle_at": 304, "perf_event_open": 298, "personality": 135, "pivot_root": 155, "prctl": 157,
    "prlimit64": 302, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179,
    "reboot": 169, "removexattr": 197, "request_key": 249, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "sched_setaffinity": 203, "sched_setattr": 314, "sched_setparam": 142, "sched_setscheduler": 144, "seccomp": 317,
    "semget": 64, "sendto": 44, "setdomainname": 171, "sethostname": 170, "setns": 308, "setpgid": 109,
    "setpriority": 141, "setsid": 112, "settimeofday": 164, "setxattr": 188, "shmat": 30, "shmget": 29, "socket": 41,
    "socketpair": 53, "swapoff": 168, "swapon": 167, "syslog": 103, "tgkill": 234, "tkill": 200, "truncate": 76,
    "umount2": 166, "unshare": 272, "userfaultfd": 323, "utime": 132, "utimensat": 280, "utimes": 235, "vfork": 58,
    "vhangup": 153,
}
_AARCH64 = {
    "accept": 202, "accept4": 242, "acct": 89, "add_key": 217, "adjtimex": 171, "bind": 200, "bpf": 280, "capset": 91,
    "chroot": 51, "clock_adjtime": 266, "clock_settime": 112, "clone": 220, "connect": 203, "delete_module": 106,
    "execve": 221, "execveat": 281, "fanotify_init": 262, "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54,
    "fcntl": 25, "finit_module": 273, "fremovexattr": 16, "fsetxattr": 7, "init_module": 105, "inotify_add_watch": 27,
    "ioctl": 29,
    "ioprio_set": 30, "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "kill": 129,
    "listen": 201, "lremovexattr": 15, "lsetxattr": 6, "memfd_create": 279, "migrate_pages": 238, "mmap": 222,
    "mount": 40, "move_pages": 239, "mq_open": 180, "msgget": 186, "open_by_handle_at": 265, "perf_event_open": 241,
    "personality": 92, "pivot_root": 41, "prctl": 167, "prlimit64": 261, "process_vm_readv": 270,
    "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "reboot": 142, "removexattr": 14, "request_key": 218,
    "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "sched_setaffinity": 122, "sched_setattr": 274,
    "sched_setparam": 118, "sched_setscheduler": 119, "seccomp": 277, "semget": 190, "sendto": 206,
    "setdomainname": 162, "sethostname": 161, "setns": 268, "setpgid": 154, "setpriority": 140, "setsid": 157,
    "settimeofday": 170, "setxattr": 5, "shmat": 196, "shmget": 194, "socket": 198, "socketpair": 199, "swapoff": 225,
    "swapon": 224, "syslog": 116, "tgkill": 131, "tkill": 130, "truncate": 45, "umount2": 39, "unshare": 97,
    "userfaultfd": 282, "utimensat": 88, "vhangup": 58,
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Architecture:
    """One ABI of system calls."""

    #: AUDIT_ARCH_… of linux/audit.h.
    audit: int
    numbers: Mapping[str, int]


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, {**_COMMON, **_X86_64}),
    "aarch64": Architecture(0xC00000B7, {**_COMMON, **_AARCH64}),
}


def present_architecture() -> Architecture | None:
    """That of this machine; None: the rules know no numbers for it."""
    return ARCHITECTURES.get(platform.machine())
