"""A DNS server for tests, and processes that ask it alone: in a mount namespace with a resolv.conf of their own.

Answers A records over UDP, as it is told: addresses, SERVFAIL, NXDOMAIN, or nothing at all. Needs root, for port 53 and
for the namespace; nothing outside of them changes.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType

_A, _IN = 1, 1
_NO_ERROR, _SERVFAIL, _NXDOMAIN = 0, 2, 3
_CODES = {"servfail": _SERVFAIL, "nxdomain": _NXDOMAIN}


class NameServer:
    """``with NameServer(name=[…]) as names``: listens on a loopback address of its own."""

    def __init__(self, directory: Path, **addresses: list[str]) -> None:
        #: By name below ``.test``.
        self.addresses = addresses
        #: "answer", "servfail", "nxdomain" or "silent".
        self.mode = "answer"
        #: Queries for A records so far.
        self.asked = 0
        # Every process that runs these tests has its own: all of 127/8 is this machine.
        self.host = f"127.{10 + os.getpid() % 200}.{os.getpid() // 200 % 250}.53"
        self._resolv_conf = directory / "resolv.conf"
        self._resolv_conf.write_text(f"nameserver {self.host}\n")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self.host, 53))
        self._thread = threading.Thread(target=self._serve)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Stands before the command of a process that asks this server. The process keeps its id."""
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", script, str(self._resolv_conf))

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self.host, 53))
        self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            answer = self._answer(query)
            if answer:
                self._socket.sendto(answer, client)

    def _answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
            at += 1 + query[at]
        (kind,) = struct.unpack_from("!H", query, at + 1)
        question = query[12 : at + 5]
        self.asked += kind == _A
        mode, found = self.mode, list(self.addresses.get(labels[0], []) if labels[1:] == ["test"] else [])
        if mode == "silent":
            return b""
        code = _CODES.get(mode, _NO_ERROR if found else _NXDOMAIN)
        if code or kind != _A:
            found = []
        records = b"".join(
            # The name is a pointer to the question's; valid for 0 seconds.
            b"\xc0\x0c" + struct.pack("!HHIH", _A, _IN, 0, 4) + socket.inet_aton(address)
            for address in found
        )
        flags = 0x8180 | code
        return query[:2] + struct.pack("!5H", flags, 1, len(found), 0, 0) + question + records
