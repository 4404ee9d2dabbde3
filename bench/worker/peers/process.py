"""Starts an outside server as a process group of its own, waits until it is ready and leaves nothing behind.

Every peer's launcher uses it. It does not configure servers, and signals only processes that it started.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.worker.payloads import HttpRequest

REPOSITORY_ROOT = Path(__file__).resolve().parents[3]
PEERS = REPOSITORY_ROOT / ".venv-peers"
SERVERS = Path(__file__).parent / "servers"
HOST = "127.0.0.1"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PeerUnavailable(RuntimeError):
    """The peer is not installed, or did not become ready; the message says which and why."""


@dataclass(frozen=True)
class Peer:
    """A running outside server. `identity` is its own spelling of the 64-float request if it is not OIP."""

    name: str
    version: str
    pid: int
    log: Path
    models: tuple[str, ...]
    http_url: str | None = None
    grpc_address: str | None = None
    identity: HttpRequest | None = None

    def cpu_seconds(self) -> float:
        """User and system time of the server's whole process tree so far."""
        return sum(_cpu_ticks(pid) for pid in _members(self.pid)) / CLOCK_TICKS

    def resident_bytes(self) -> int:
        """Resident memory of the server's whole process tree now; pages it shares count in each process."""
        return sum(_resident_pages(pid) for pid in _members(self.pid)) * PAGE_BYTES

    def last_lines(self, count: int = 5) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return _started(self.pid) is not None


def environment_python(name: str) -> Path:
    """The interpreter of a peer's environment ("" is the shared one), or why there is none."""
    python = PEERS / name / "bin" / "python"
    if (PEERS / name / ".installed").exists() and python.exists():
        return python
    reason = PEERS / f"{name}.unavailable"
    why = reason.read_text().strip() if reason.exists() else "run `make peers` first"
    raise PeerUnavailable(f"{name or 'triton'} is not installed in {PEERS.name}: {why}")


def installed_version(python: Path, distribution: str) -> str:
    """The version of a distribution inside a peer's environment."""
    script = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def answers(url: str) -> bool:
    """Whether a GET is answered with a success."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status < 300)
    except (urllib.error.URLError, OSError):
        return False


def listens(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    try:
        socket.create_connection((HOST, port), timeout=2).close()
    except OSError:
        return False
    return True


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder for one run's generated files; its path stays short, since Ray puts sockets below it."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    ready: Callable[[], bool],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 60.0,
    starts: int = 1,
) -> Iterator[int]:
    """Runs a server while the block runs; yields its pid once `ready` returns true.

    `starts`: how often a server may be started that a signal ends before it is ready.
    """
    log.unlink(missing_ok=True)
    for left in reversed(range(starts)):
        process = _start(command, log, environment)
        try:
            if _wait_until_ready(name, process, ready, log, timeout_seconds, may_crash=left > 0):
                yield process.pid
                return
        finally:
            _stop(process)


def _start(command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    # A bench that is itself killed cannot clean up; the kernel then ends the server for it.
    setpriv = shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
    with log.open("ab") as sink:
        return subprocess.Popen(
            [*guard, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=log.parent,
            start_new_session=True,
        )


def _wait_until_ready(
    name: str,
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    log: Path,
    timeout_seconds: float,
    *,
    may_crash: bool,
) -> bool:
    """Whether it became ready; false where a signal ended it, and it `may_crash`."""
    give_up = time.monotonic() + timeout_seconds
    while not ready():
        if process.poll() is not None:
            if may_crash and process.returncode < 0:
                return False
            raise PeerUnavailable(f"{name} exited with {process.returncode} before it was ready:\n{_tail(log)}")
        if time.monotonic() > give_up:
            raise PeerUnavailable(f"{name} was not ready within {timeout_seconds:.0f} s:\n{_tail(log)}")
        time.sleep(0.05)
    return True


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])


def _stop(process: subprocess.Popen[bytes], grace_seconds: float = 15.0) -> None:
    # The tree is read before the first signal: once the parent has exited, a child that left the session
    # (Ray's daemons do) can no longer be distinguished from other processes.
    members = _members(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            pass
    # Some leaders (LitServe's) leave without their children.
    members |= _members(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, started in members.items():
            if _started(pid) == started:
                _signal(pid, number)
        give_up = time.monotonic() + 3.0
        while any(_started(pid) == started for pid, started in members.items()):
            if time.monotonic() > give_up:
                break
            time.sleep(0.02)
    process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _members(leader: int) -> dict[int, int]:
    """pid → start time of every process in the leader's session or below it in the tree."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) and fields[0] != "Z":
            parents[int(entry)] = (int(fields[1]), int(fields[3]))

    def belongs(pid: int) -> bool:
        while pid in parents:
            parent, session = parents[pid]
            if pid == leader or session == leader:
                return True
            pid = parent
        return False

    return {pid: started for pid in parents if belongs(pid) and (started := _started(pid)) is not None}


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the command before it may hold spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return sum(map(int, fields[11:13])) if fields else 0


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
