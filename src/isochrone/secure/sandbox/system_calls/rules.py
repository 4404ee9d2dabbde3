"""What a confined process may not ask of the kernel.

Landlock bounds files; these rules bound the rest: processes, sockets, signals, memory that no limit counts, and what
changes the machine. A denied call fails with EPERM, so that the model's code sees an ordinary error.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from isochrone.secure.sandbox.system_calls.bpf import PRETEND, Compare, Deny, Instruction, assemble
from isochrone.secure.sandbox.system_calls.numbers import HIGHEST, Architecture

#: Other processes, the machine, its clocks, keys, mounts and namespaces; further interfaces into the kernel (io_uring
#: would make calls that no filter sees); names of files that Landlock would hide; and memory that RLIMIT_DATA does not
#: count.
# fmt: off
_ALWAYS = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp",
    "pidfd_getfd", "pidfd_send_signal", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "mount", "umount2", "pivot_root", "chroot", "move_mount",
    "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "unshare",
    "setns", "add_key", "request_key", "keyctl", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday",
    "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "syslog", "iopl", "ioperm",
    "modify_ldt", "vhangup", "fanotify_init", "inotify_add_watch", "migrate_pages", "move_pages", "ioprio_set",
    "memfd_create",
    "memfd_secret", "shmget", "shmat", "msgget", "semget", "mq_open", "truncate", "setsid", "setpgid", "tkill",
)
# fmt: on
_PROCESSES = ("fork", "vfork", "execve", "execveat")
_NETWORK = ("socket", "connect", "bind", "listen", "accept", "accept4")
#: Landlock does not cover these: a process with the worker's user could change the worker's files by them.
# fmt: off
_OWNERSHIP = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
    "fremovexattr", "removexattrat",
)
# fmt: on

_CLONE_THREAD = 0x00010000
#: CLONE_NEWTIME is not among them: in clone's flags its bit is one of the exit signal.
_CLONE_NEW = 0x7E020000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN = 0x01, 0x20, 0x0100
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_SIGKILL = 9
#: TIOCSTI and TIOCLINUX type into a terminal; FIOSETOWN and SIOCSPGRP have signals sent to a process, like F_SETOWN.
_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)
_F_SETOWN, _F_SETOWN_EX = 8, 15
_PERSONALITY_QUERY = 0xFFFFFFFF
_SOCK_TYPE = 0xF


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the rules of one process depend on."""

    pid: int
    network: bool = False
    processes: bool = False
    #: Whether it may change rights and times of files: those of others are not its user's, or are mounted read-only.
    changes_files: bool = False
    #: Whether it may send signals: the kernel keeps them from processes that are not its own.
    signals: bool = False


def filter_program(architecture: Architecture, allowance: Allowance) -> list[Instruction]:
    rules = [
        Deny(architecture.numbers[name], where, error)
        for name, where, error in _rules(allowance)
        if name in architecture.numbers
    ]
    return assemble(architecture.audit, HIGHEST, rules)


_Rule = tuple[str, tuple[tuple[Compare, ...], ...], int]


def _rules(allowance: Allowance) -> Iterator[_Rule]:
    always = [*_ALWAYS]
    always += [] if allowance.processes else _PROCESSES
    always += [] if allowance.network else _NETWORK
    always += [] if allowance.changes_files else _OWNERSHIP
    for name in always:
        yield name, (), errno.EPERM
    # Its flags are in memory, where a filter cannot look. glibc then uses clone.
    yield "clone3", (), errno.ENOSYS
    # The worker has pinned the process; runtimes that pin their threads must not log errors for it.
    yield "sched_setaffinity", (), PRETEND
    yield from _conditional(allowance)


def _conditional(allowance: Allowance) -> Iterator[_Rule]:
    others = Compare(0, allowance.pid, equal=False)
    not_itself = (Compare(0, 0, equal=False), others)
    namespaces = (Compare(0, 0, equal=False, mask=_CLONE_NEW),)
    copies = () if allowance.processes else ((Compare(0, 0, mask=_CLONE_THREAD),),)
    yield "clone", (namespaces, *copies), errno.EPERM
    for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        if not allowance.signals:
            yield name, ((others,),), errno.EPERM
    # With the worker's user, these would reach the worker.
    for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        yield name, (not_itself,), errno.EPERM
    another = (Compare(1, 0, equal=False), Compare(1, allowance.pid, equal=False))
    # The first argument 0: of one process. Others are of all processes of a user.
    yield "setpriority", ((Compare(0, 0, equal=False),), another), errno.EPERM
    yield "personality", ((Compare(0, _PERSONALITY_QUERY, equal=False),),), errno.EPERM
    # It must end with the worker, and stay undumpable: nothing may read its memory or dump it.
    yield (
        "prctl",
        (
            (Compare(0, _PR_SET_DUMPABLE), Compare(1, 0, equal=False)),
            (Compare(0, _PR_SET_PDEATHSIG), Compare(1, _SIGKILL, equal=False)),
        ),
        errno.EPERM,
    )
    yield "ioctl", tuple((Compare(1, number),) for number in _IOCTLS), errno.EPERM
    yield "fcntl", tuple((Compare(1, number),) for number in (_F_SETOWN, _F_SETOWN_EX)), errno.EPERM
    # RLIMIT_DATA counts neither.
    shared = _MAP_SHARED | _MAP_ANONYMOUS
    yield "mmap", ((Compare(3, shared, mask=shared),), (Compare(3, _MAP_GROWSDOWN, mask=_MAP_GROWSDOWN),)), errno.EPERM
    yield from _socket_rules(allowance)


def _socket_rules(allowance: Allowance) -> Iterator[_Rule]:
    internet = (socket.AF_INET, socket.AF_INET6)
    if allowance.network:
        yield "socket", (tuple(Compare(0, family, equal=False) for family in internet),), errno.EPERM
    # A pair of datagram sockets could send to any other socket by name.
    yield (
        "socketpair",
        (
            (Compare(0, socket.AF_UNIX, equal=False),),
            (Compare(1, socket.SOCK_STREAM, equal=False, mask=_SOCK_TYPE),),
        ),
        errno.EPERM,
    )
    if not allowance.network:
        # Its fifth argument is an address: only for sockets that have no peer.
        yield (
            "sendto",
            ((Compare(4, 0, equal=False),), (Compare(4, 0, equal=False, upper=True),)),
            errno.EPERM,
        )
