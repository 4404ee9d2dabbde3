"""The most that an emulated link carries on this machine: what one TCP connection gets if the link has no bounds."""

from __future__ import annotations

import socket
import threading
import time

from bench.links.network import FAR, NEAR, EmulatedNetwork
from bench.links.settings import LinkSettings

_BYTES = 32 << 20
_PATIENCE = 60.0


def carried_bits_per_second(network: EmulatedNetwork) -> float:
    """In the thread that has entered the network, while nothing else uses it. The settings are as before afterwards."""
    before = network.settings
    network.set(LinkSettings(buffer_bytes=float(1 << 30)))
    try:
        with socket.create_server((NEAR, 0)) as listening:
            listening.settimeout(_PATIENCE)
            thread = threading.Thread(target=_receive, args=(listening,))
            thread.start()
            try:
                with socket.create_connection((FAR, listening.getsockname()[1]), timeout=_PATIENCE) as caller:
                    began = time.monotonic()
                    caller.sendall(bytes(_BYTES))
                    caller.recv(1)
                    return _BYTES * 8 / (time.monotonic() - began)
            finally:
                thread.join(_PATIENCE)
    finally:
        network.set(before)


def _receive(listening: socket.socket) -> None:
    accepted, _ = listening.accept()
    with accepted:
        accepted.settimeout(_PATIENCE)
        left = _BYTES
        while left and (received := len(accepted.recv(1 << 20))):
            left -= received
        if not left:
            accepted.sendall(b"x")
