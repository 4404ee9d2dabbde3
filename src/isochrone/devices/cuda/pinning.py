"""Pages of the host locked in memory, for copies between them and GPUs without a detour."""

from __future__ import annotations

from isochrone.devices.cuda.interface import CudaDriver
from isochrone.devices.cuda.library import host_address


class PinnedView:
    """Memory of the host that is locked until ``unpin``; it keeps the memory alive."""

    def __init__(self, driver: CudaDriver, device: int, view: memoryview) -> None:
        self._driver, self._device, self._view = driver, device, view
        self._address = host_address(view)
        driver.register_host(device, self._address, view.nbytes)
        self.is_pinned = True

    def unpin(self) -> None:
        """Unlock the memory. Every copy from and to it must be complete; a second call does nothing."""
        if self.is_pinned:
            self.is_pinned = False
            self._driver.unregister_host(self._device, self._address)


def pin(driver: CudaDriver, device: int, view: memoryview) -> PinnedView:
    """Lock the pages of a buffer, whole pages at both ends. Raises ``CudaError``, as if they are locked already."""
    return PinnedView(driver, device, view)
