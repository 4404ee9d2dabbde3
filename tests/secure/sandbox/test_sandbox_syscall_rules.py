"""What the rules deny and allow, on both architectures, by name and arguments."""

from __future__ import annotations

import errno
import re
import socket
from pathlib import Path

import pytest
from bpf_machine import denied_with, run

from isochrone.secure.sandbox.system_calls.numbers import ARCHITECTURES
from isochrone.secure.sandbox.system_calls.rules import Allowance, filter_program

_PID = 4711
_THREAD = 0x003D0F00  # the flags of pthread_create
_SIGCHLD = 17
_NOTHING = Allowance(_PID)
# fmt: off
_NEVER = (
    "ptrace", "process_vm_readv", "process_vm_writev", "bpf", "mount", "umount2", "keyctl", "userfaultfd",
    "io_uring_setup", "kexec_load", "unshare", "setns", "perf_event_open", "open_by_handle_at", "memfd_create",
    "shmget", "setsid", "setpgid", "pidfd_getfd", "pidfd_send_signal", "init_module", "inotify_add_watch",
    "reboot", "truncate",
)
# fmt: on


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _error(architecture: str, allowance: Allowance, name: str, *arguments: int) -> int | None:
    abi = ARCHITECTURES[architecture]
    number = abi.numbers.get(name)
    if number is None:
        return errno.EPERM  # it does not exist there
    return denied_with(run(filter_program(abi, allowance), number, abi.audit, arguments))


@pytest.mark.parametrize(
    "name",
    _NEVER,
)
@pytest.mark.parametrize("everything", [False, True])
def test_some_calls_are_never_allowed(architecture: str, name: str, everything: bool) -> None:
    allowance = Allowance(_PID, network=everything, processes=everything, changes_files=everything, signals=everything)
    assert _error(architecture, allowance, name, 1, 2, 3) == errno.EPERM


@pytest.mark.parametrize("name", ["fork", "vfork", "execve", "execveat"])
def test_processes_need_a_grant(architecture: str, name: str) -> None:
    assert _error(architecture, _NOTHING, name) == errno.EPERM
    if name in ARCHITECTURES[architecture].numbers:
        assert _error(architecture, Allowance(_PID, processes=True), name) is None


def test_threads_are_allowed_and_copies_are_not(architecture: str) -> None:
    granted = Allowance(_PID, processes=True)
    assert _error(architecture, _NOTHING, "clone", _THREAD) is None
    assert _error(architecture, _NOTHING, "clone", _SIGCHLD) == errno.EPERM
    assert _error(architecture, granted, "clone", _SIGCHLD) is None
    # A new namespace is none of both.
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert _error(architecture, granted, "clone", _SIGCHLD | flag) == errno.EPERM
        assert _error(architecture, _NOTHING, "clone", _THREAD | flag) == errno.EPERM
    assert _error(architecture, granted, "clone3") == errno.ENOSYS


@pytest.mark.parametrize("family", range(46))
def test_sockets_are_internet_sockets_with_a_grant_and_nothing_without(architecture: str, family: int) -> None:
    granted = Allowance(_PID, network=True)
    assert _error(architecture, _NOTHING, "socket", family, socket.SOCK_STREAM) == errno.EPERM
    expected = None if family in (socket.AF_INET, socket.AF_INET6) else errno.EPERM
    assert _error(architecture, granted, "socket", family, socket.SOCK_STREAM) == expected


def test_pairs_of_sockets_cannot_reach_others(architecture: str) -> None:
    pair = int(socket.AF_UNIX)
    assert _error(architecture, _NOTHING, "socketpair", pair, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) is None
    assert _error(architecture, _NOTHING, "socketpair", pair, socket.SOCK_DGRAM) == errno.EPERM
    assert _error(architecture, _NOTHING, "socketpair", socket.AF_INET, socket.SOCK_STREAM) == errno.EPERM
    assert _error(architecture, _NOTHING, "sendto", 3, 0x7F00, 10, 0, 0, 0) is None
    for address in (0x7FFF12340000, 0x1, 0x100000000):
        assert _error(architecture, _NOTHING, "sendto", 3, 0x7F00, 10, 0, address, 16) == errno.EPERM
    for name in ("connect", "bind", "listen", "accept4"):
        assert _error(architecture, _NOTHING, name, 3) == errno.EPERM


@pytest.mark.parametrize("name", ["kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"])
def test_signals_reach_the_process_itself(architecture: str, name: str) -> None:
    assert _error(architecture, _NOTHING, name, _PID, 6) is None
    for other in (0, 1, -1, -_PID, _PID + 1):
        assert _error(architecture, _NOTHING, name, other, 9) == errno.EPERM
        # Starting processes alone does not allow it: they might be the worker's.
        assert _error(architecture, Allowance(_PID, processes=True), name, other, 9) == errno.EPERM


@pytest.mark.parametrize("name", ["prlimit64", "sched_setscheduler", "sched_setattr"])
def test_limits_of_others_cannot_be_set(architecture: str, name: str) -> None:
    assert _error(architecture, _NOTHING, name, 0, 7) is None
    assert _error(architecture, _NOTHING, name, _PID, 7) is None
    assert _error(architecture, _NOTHING, name, _PID - 1, 7) == errno.EPERM


def test_priorities_are_those_of_the_process_itself(architecture: str) -> None:
    assert _error(architecture, _NOTHING, "setpriority", 0, 0, 10) is None
    assert _error(architecture, _NOTHING, "setpriority", 0, _PID, 10) is None
    assert _error(architecture, _NOTHING, "setpriority", 0, 1, 10) == errno.EPERM
    for others in (1, 2):
        assert _error(architecture, _NOTHING, "setpriority", others, 0, 10) == errno.EPERM


def test_memory_that_no_limit_counts_is_denied(architecture: str) -> None:
    private, shared, anonymous, grows = 0x02, 0x01, 0x20, 0x0100
    for flags, expected in (
        (private | anonymous, None),
        (private | anonymous | 0x20000, None),
        (shared, None),
        (shared | anonymous, errno.EPERM),
        (shared | private | anonymous, errno.EPERM),
        (private | anonymous | grows, errno.EPERM),
    ):
        assert _error(architecture, _NOTHING, "mmap", 0, 4096, 3, flags) == expected


def test_it_stays_undumpable_and_dies_with_the_worker(architecture: str) -> None:
    assert _error(architecture, _NOTHING, "prctl", 4, 0) is None
    assert _error(architecture, _NOTHING, "prctl", 4, 1) == errno.EPERM
    assert _error(architecture, _NOTHING, "prctl", 1, 9) is None
    assert _error(architecture, _NOTHING, "prctl", 1, 0) == errno.EPERM
    assert _error(architecture, _NOTHING, "prctl", 15, 0x7F00) is None


def test_terminals_and_owners_of_descriptors(architecture: str) -> None:
    assert _error(architecture, _NOTHING, "ioctl", 0, 0x5412) == errno.EPERM
    assert _error(architecture, _NOTHING, "ioctl", 0, 0x5401) is None
    assert _error(architecture, _NOTHING, "fcntl", 3, 8, 1) == errno.EPERM
    assert _error(architecture, _NOTHING, "fcntl", 3, 1) is None


@pytest.mark.parametrize("name", ["fchmod", "fchmodat", "fchownat", "setxattr", "utimensat"])
def test_files_of_others_keep_their_rights(architecture: str, name: str) -> None:
    assert _error(architecture, _NOTHING, name) == errno.EPERM
    assert _error(architecture, Allowance(_PID, changes_files=True), name) is None


def test_pinning_looks_as_if_it_had_worked(architecture: str) -> None:
    assert _error(architecture, _NOTHING, "sched_setaffinity", 0) == 0


@pytest.mark.parametrize(
    ("name", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_headers(name: str, header: str) -> None:
    path = Path(header)
    if not path.exists():
        pytest.skip(f"{header} is not installed")
    defined = dict(re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text(), re.MULTILINE))
    numbers = ARCHITECTURES[name].numbers
    assert len(set(numbers.values())) == len(numbers)
    # Headers may be older than the newest calls.
    known = {call: number for call, number in numbers.items() if number < 443}
    assert {call: int(defined[call]) for call in known} == known
