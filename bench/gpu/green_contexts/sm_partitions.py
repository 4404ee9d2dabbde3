"""Streams that run on a part of a GPU's multiprocessors (green contexts).

``limited`` uses torch's own class. It takes the first group of the device each time: two of them overlap, so one alone
can limit the batch job, not reserve SMs for both sides. ``split`` uses Isochrone's driver layer: two sides that share
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.green_contexts import GreenLibrary
from isochrone.devices.sm_plan import plan_division


class Unsupported(RuntimeError):
    """This torch, driver or device has no green contexts; the message says which."""


@dataclass(frozen=True)
class Side:
    """A stream, the SMs it really has, and what must outlive it."""

    stream: Any
    sms: int
    owner: Any


def total_sms(torch: Any) -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def limited(torch: Any, sms: int) -> Side:
    """A stream of torch's own green context with so many SMs. The API differs between 2.9 and 2.12."""
    try:
        from torch.cuda.green_contexts import GreenContext
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no torch.cuda.green_contexts: {error}") from None
    try:
        create = getattr(GreenContext, "create", None)
        try:
            context = GreenContext(num_sms=sms, device_id=0) if create is None else create(sms, 0)
        except TypeError:  # from 2.12 on, by name
            context = GreenContext.create(num_sms=sms, device_id=0)
        if hasattr(context, "Stream"):
            return Side(context.Stream(), sms, context)
        # Before there was Stream: the context's own stream is current while the context is.
        context.set_context()
        try:
            return Side(torch.cuda.current_stream(), sms, context)
        finally:
            context.pop_context()
    except (RuntimeError, TypeError, AttributeError) as error:
        raise Unsupported(f"torch {torch.__version__}: {error}") from error


def split(torch: Any, sms: int) -> tuple[Side, Side]:
    """Streams on ``sms`` SMs, and on all the others. After torch has made the primary context."""
    try:
        driver = GreenLibrary()
        plan_division(driver.limits(0), sms)
        contexts = driver.divide(0, sms)
        reserved, rest = (
            torch.cuda.ExternalStream(driver.new_stream(each)) for each in (contexts.reserved, contexts.rest)
        )
    except ValueError as error:
        raise Unsupported(f"{sms} SMs: expected {error}") from None
    except CudaError as error:
        raise Unsupported(str(error)) from None
    return Side(reserved, contexts.division.reserved, driver), Side(rest, contexts.division.rest, driver)
