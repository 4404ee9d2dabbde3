"""New connections: processes that connect, send one request, read its answer and close, one after the other.

Run as a program by ``bench.security``; prints how many there were. ``--resume`` offers the session of the connection
before, so that the handshake has neither certificates nor signatures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import ssl
import sys
import time

REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.security.connections", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--ca", default="", help="TLS, with this authority")
    parser.add_argument("--cert", default="")
    parser.add_argument("--key", default="")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        counts = pool.map(_connect_for, [given] * given.processes, chunksize=1)
    print(sum(made for made, _ in counts), sum(resumed for _, resumed in counts))
    return 0


def _connect_for(given: argparse.Namespace) -> tuple[int, int]:
    """Connections made, and those of them that resumed a session."""
    context = ssl.create_default_context(cafile=given.ca) if given.ca else None
    if context is not None and given.cert:
        context.load_cert_chain(given.cert, given.key)
    session: ssl.SSLSession | None = None
    made = resumed = 0
    ends = time.monotonic() + given.seconds
    while time.monotonic() < ends:
        connection = socket.create_connection(("127.0.0.1", given.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            _exchange(connection)
        else:
            with context.wrap_socket(connection, server_hostname="localhost", session=session) as secure:
                _exchange(secure)
                resumed += bool(secure.session_reused)
                # The ticket of TLS 1.3 comes after the handshake: with the answer, it has been read.
                session = secure.session if given.resume else None
        connection.close()
        made += 1
    return made, resumed


def _exchange(connection: socket.socket) -> None:
    connection.sendall(REQUEST)
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"bench.security.connections: {answer[:200]!r}")


if __name__ == "__main__":
    sys.exit(main())
