"""What the processes of one server share: a private directory with their sockets, and the board."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from isochrone.multiprocess.group.board import Board

#: A path of a Unix-domain socket has at most 108 bytes (unix(7)).
_LONGEST_DIRECTORY = 80


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Made by the supervisor before it forks."""

    directory: Path
    board: Board
    supervisor: int

    @classmethod
    def create(cls, count: int) -> ProcessGroup:
        """Only this user may enter the directory (mode 0700): the calls inside carry no other proof."""
        parent = None if len(tempfile.gettempdir()) < _LONGEST_DIRECTORY else "/tmp"
        return cls(Path(tempfile.mkdtemp(prefix="isochrone-", dir=parent)), Board(count), os.getpid())

    @property
    def count(self) -> int:
        return self.board.count

    def socket(self, number: int) -> str:
        """Of one serving process: its own protocol, without the others, and its metrics."""
        return str(self.directory / f"process-{number}.sock")

    @property
    def coordinator_socket(self) -> str:
        return str(self.directory / "coordinator.sock")

    @property
    def record_file(self) -> Path:
        return self.directory / "control-record.json"

    @property
    def retired_file(self) -> Path:
        """The last counts of processes that ended."""
        return self.directory / "retired-counts.json"

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
