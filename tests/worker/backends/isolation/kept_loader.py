"""A loader for the process of an isolated model, whose load files beside the model decide.

While "wait" is there, the load waits; it creates "waiting". If "fail" is there, the load fails, and creates "failed".
When "lose" is there, the model reports a loss and ends its process; it removes the file. It doubles its input, or
streams it for ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.errors import ModelFailed
from isochrone.worker.backends.interface import Executable, InstanceLost
from isochrone.worker.backends.isolation.sent_context import received_context

if TYPE_CHECKING:
    import msgspec

    from isochrone.protocol.messages import Parameters, Tensors


class Doubled(Executable):
    def __init__(self, directory: Path) -> None:
        self._order = directory / "lose"
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._order.exists() or self.report_loss is None:
            time.sleep(0.01)
        self._order.unlink()
        self.report_loss(InstanceLost("model 'm' version 1", "a rank is gone"))
        os._exit(1)

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        return {"y": inputs["x"] * 2}

    def stream(self, inputs: Tensors, parameters: Parameters) -> Iterator[Tensors]:
        while True:
            yield {"y": inputs["x"] * 2}

    def close(self) -> None:
        pass


def load_in_child(model: msgspec.Raw) -> Executable:
    directory = received_context(model).directory
    if (directory / "fail").exists():
        (directory / "failed").touch()
        raise ModelFailed("the load fails")
    while (directory / "wait").exists():
        (directory / "waiting").touch()
        time.sleep(0.01)
    return Doubled(directory)
