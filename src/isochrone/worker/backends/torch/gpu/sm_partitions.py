"""Divides a GPU for models that reserve some of its multiprocessors: the parameter ``reserved_sms``.

A model whose configuration has it runs on that many SMs, together with the other models of this process that reserve
them; every model that is loaded later runs on the rest. The setting of the backend (``--backend-config
pytorch,reserved_sms=N``) divides the GPU at the first load, before any model can take all of it. One process divides a
GPU once: a captured graph keeps the SMs of its stream, so a second division would overlap with the first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.green_contexts import GreenContexts, GreenDriver, GreenLibrary
from isochrone.devices.sm_plan import plan_division
from isochrone.worker.backends import parameters
from isochrone.worker.backends.devices.streams import SHELF, Parts, StreamShelf

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

log = structlog.get_logger(__name__)

KEY = "reserved_sms"

#: Makes torch's object of a stream, from its handle and the number of its GPU.
WrapStream = Callable[[int, int], Any]


class SmPartitions:
    """The divided GPUs of this process. Any thread may call it."""

    def __init__(self, shelf: StreamShelf, load_driver: Callable[[], GreenDriver] = GreenLibrary) -> None:
        self._shelf = shelf
        self._load_driver = load_driver
        self._lock = threading.Lock()
        self._divided: dict[int, GreenContexts] = {}
        #: GPUs that the server's setting divides, whether or not a model is loaded that reserves SMs.
        self._permanent: set[int] = set()
        self._driver: GreenDriver | None = None

    def divide(self, context: LoadContext, gpu: int, reserved: int, wrap: WrapStream, *, is_own: bool) -> None:
        """Divides a GPU, if it is not divided yet; raises ``ConfigError``.

        ``is_own``: the model reserves SMs. Otherwise the server's setting does, for other models.
        """
        with self._lock:
            found = self._divided.get(gpu)
            if found is None:
                found = self._divided[gpu] = self._new(context, gpu, reserved)
                log.info("GPU divided", gpu=gpu, reserved_sms=found.division.reserved, other_sms=found.division.rest)
            elif found.division.reserved != reserved:
                expected = f"{found.division.reserved}, as GPU {gpu} has been divided so until the server is restarted"
                parameters.reject(context, KEY, expected, str(reserved))
            if not is_own:
                self._permanent.add(gpu)
            self._shelf.divide(f"cuda:{gpu}", self._parts(gpu, found, wrap))
        before = self._shelf.undivided(f"cuda:{gpu}")
        if is_own and before:
            log.warning(
                "models that were loaded before use the reserved SMs, too; load them again, or start the server with"
                " --backend-config pytorch,reserved_sms",
                model=context.model_name,
                gpu=gpu,
                streams=before,
            )

    def _parts(self, gpu: int, contexts: GreenContexts, wrap: WrapStream) -> Parts:
        driver = self._driver
        assert driver is not None
        return Parts(
            lambda: wrap(driver.new_stream(contexts.reserved), gpu),
            lambda: wrap(driver.new_stream(contexts.rest), gpu),
            gpu in self._permanent,
        )

    def _new(self, context: LoadContext, gpu: int, reserved: int) -> GreenContexts:
        try:
            self._driver = self._driver or self._load_driver()
            plan_division(self._driver.limits(gpu), reserved)
            return self._driver.divide(gpu, reserved)
        except ValueError as error:
            parameters.reject(context, KEY, str(error), str(reserved))
        except CudaError as error:
            expected = f"none, as GPU {gpu} or its driver cannot divide SMs ({error}): remove it, or update the driver"
            parameters.reject(context, KEY, expected, str(reserved))


PARTITIONS = SmPartitions(SHELF)


def reserves(context: LoadContext) -> bool:
    """Whether the model's own configuration reserves SMs, and not only the server's setting."""
    own = {key.lower(): value.string_value.strip() for key, value in context.config.parameters.items()}
    return own.get(KEY, "0") not in ("", "0")
