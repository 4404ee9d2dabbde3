"""What the processes of one server share: a private directory with their sockets, and the board."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from isochrone.multiprocess.group.board import Board

#: Bytes of a Unix-domain socket's path: 108 with the zero at its end (unix(7)).
_LONGEST_PATH = 107
_PREFIX = "isochrone-"
#: ``mkdtemp`` adds eight characters.
_DIRECTORY = len(f"/{_PREFIX}12345678/")
_COORDINATOR_SOCKET = "coordinator.sock"


def _socket_name(number: int) -> str:
    return f"process-{number}.sock"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Made by the supervisor before it forks."""

    directory: Path
    board: Board
    supervisor: int

    @classmethod
    def create(cls, count: int) -> ProcessGroup:
        """Only this user may enter the directory (mode 0700): the calls inside carry no other proof."""
        names = max(len(_socket_name(count)), len(_COORDINATOR_SOCKET))
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) + _DIRECTORY + names > _LONGEST_PATH:
            parent = "/tmp"
        return cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)), Board(count), os.getpid())

    @property
    def count(self) -> int:
        return self.board.count

    def socket(self, number: int) -> str:
        """Of one serving process: its own protocol, without the others, and its metrics."""
        return str(self.directory / _socket_name(number))

    @property
    def coordinator_socket(self) -> str:
        return str(self.directory / _COORDINATOR_SOCKET)

    @property
    def record_file(self) -> Path:
        return self.directory / "control-record.json"

    @property
    def retired_file(self) -> Path:
        """The last counts of processes that ended."""
        return self.directory / "retired-counts.json"

    @property
    def quota_lock_file(self) -> Path:
        """Locked while an account gets its place in the memory that gateways share."""
        return self.directory / "quotas.lock"

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
