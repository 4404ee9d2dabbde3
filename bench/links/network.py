"""An emulated network in a network namespace of its own: the calling thread enters it, nothing outside changes.

``tc netem`` would do, but many kernels come without it; nearly all have TUN devices. Packets to ``FAR`` come back later
with their two addresses exchanged, so that a server that listens on ``NEAR`` is reached at ``FAR`` over the link, and
its answers go the same way. At ``NEAR`` it is reached without a link. Needs root, Linux with /dev/net/tun, and ``ip``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from bench.links.settings import LinkSettings, SharedSettings

NEAR, FAR = "10.77.0.1", "10.77.0.2"
_SUBNET = "10.77.0.0/24"
_DEVICE = "delayed0"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
#: TCP leaves checksums and the division into packets to the device: one read or write moves up to 64 KiB.
_TUNSETOFFLOAD, _CHECKSUMS, _SEGMENTS = 0x400454D0, 0x01, 0x02
_END_SECONDS = 10.0
#: What most kernels use; that of the machine may be another one.
_CONGESTION_CONTROL = "cubic"


class EmulatedNetwork:
    """``with EmulatedNetwork(LinkSettings(0.01)) as network``, in a thread that ends with the block: it and the
    processes that it starts are in the namespace for good. Raises ``OSError`` with what is missing."""

    def __init__(self, settings: LinkSettings) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"a network namespace needs root: {os.strerror(number)}")
        try:
            # Belongs to the namespace that it is opened in.
            self._device = os.open("/dev/net/tun", os.O_RDWR)
        except OSError as error:
            raise OSError(error.errno, f"no TUN device, /dev/net/tun: {error.strerror}") from None
        self._shared = SharedSettings.make()
        self._carrier: subprocess.Popen[bytes] | None = None
        self.set(settings)

    def set(self, settings: LinkSettings) -> None:
        """At any time, from any thread; for packets that are sent from now on."""
        self.settings = settings
        self._shared.write(settings)

    def __enter__(self) -> EmulatedNetwork:
        try:
            flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
            fcntl.ioctl(self._device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), flags))
            fcntl.ioctl(self._device, _TUNSETOFFLOAD, _CHECKSUMS | _SEGMENTS)
            for command in (
                "link set lo up",
                f"address add {NEAR}/24 dev {_DEVICE}",
                f"link set {_DEVICE} txqueuelen 10000 up",
                f"route replace {_SUBNET} dev {_DEVICE} scope link src {NEAR} congctl {_CONGESTION_CONTROL}",
            ):
                subprocess.run(("ip", *command.split()), check=True)
            descriptors = (self._device, self._shared.descriptor)
            self._carrier = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("carrier.py")), *map(str, descriptors)],
                stdin=subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the caller, who ends it last
            )
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    @property
    def carrier_pid(self) -> int:
        assert self._carrier is not None
        return self._carrier.pid

    def _close(self) -> None:
        if self._carrier is not None:
            assert self._carrier.stdin is not None
            self._carrier.stdin.close()
            try:
                self._carrier.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._carrier.send_signal(signal.SIGKILL)
                self._carrier.wait()
        os.close(self._device)
        self._shared.close()
