"""A network with a delay, in a network namespace of its own: the calling thread enters it, nothing outside changes.

``tc netem`` would do, but many kernels come without it; nearly all have TUN devices. Packets to ``FAR`` come back after
the delay with their two addresses exchanged, so that a server that listens on ``NEAR`` is reached at ``FAR``, and its
answers go the same way. At ``NEAR`` it is reached without a delay. Needs root, Linux with /dev/net/tun, and ``ip``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading
import time
from collections import deque
from types import TracebackType

NEAR, FAR = "10.77.0.1", "10.77.0.2"
_DEVICE = "delayed0"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class DelayedNetwork:
    """``with DelayedNetwork(0.01) as network``, in a thread that ends with the block: it and the processes that it
    starts are in the namespace for good. Raise ``OSError`` with what is missing."""

    def __init__(self, seconds: float) -> None:
        #: Of one way; may be changed at any time.
        self.seconds = seconds
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"a network namespace needs root: {os.strerror(number)}")
        try:
            self._device = os.open("/dev/net/tun", os.O_RDWR)
        except OSError as error:
            raise OSError(error.errno, f"no TUN device, /dev/net/tun: {error.strerror}") from None
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> DelayedNetwork:
        fcntl.ioctl(self._device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        for command in ("link set lo up", f"address add {NEAR}/24 dev {_DEVICE}", f"link set {_DEVICE} up"):
            subprocess.run(("ip", *command.split()), check=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join(10)
        os.close(self._device)
        os.close(self._stop)

    def _carry(self) -> None:
        #: When they are due, and what is to be delivered.
        packets: deque[tuple[float, bytes]] = deque()
        while True:
            wait = max(0.0, packets[0][0] - time.monotonic()) if packets else None
            ready, _, _ = select.select((self._device, self._stop), (), (), wait)
            if self._stop in ready:
                return
            if ready:
                packet = os.read(self._device, 65536)
                if packet[0] >> 4 == 4:
                    # The checksums of IP and TCP stay right: they are sums.
                    back = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
                    packets.append((time.monotonic() + self.seconds, back))
            while packets and packets[0][0] <= time.monotonic():
                os.write(self._device, packets.popleft()[1])
