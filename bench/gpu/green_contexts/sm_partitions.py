"""Streams that run on a part of a GPU's multiprocessors (green contexts).

``GreenContext.create`` of torch takes the first group of the device each time: two of them overlap, so one alone can
limit the batch job, not reserve SMs for both sides. For two sides that share nothing, the driver splits the device once
and makes a context of the group and one of the rest. Must be called after torch has made the primary context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Unsupported(RuntimeError):
    """This torch, driver or device has no green contexts; the message says which."""


@dataclass(frozen=True)
class Side:
    """A stream, the SMs it really has (counts are rounded up by the driver), and what must outlive it."""

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
        context = create(sms, 0) if create is not None else GreenContext(num_sms=sms, device_id=0)
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
    """Streams on ``sms`` SMs or a few more, and on all the others."""
    try:
        import cuda.bindings.driver as driver
    except ImportError as error:
        raise Unsupported(f"the package cuda-bindings is missing: {error}") from None

    def checked(answer: tuple[Any, ...]) -> Any:
        status, *rest = answer
        if int(status) != 0:
            raise Unsupported(f"the driver says {status!r}")
        return rest[0] if len(rest) == 1 else rest

    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    device = checked(driver.cuDeviceGet(0))
    whole = checked(driver.cuDeviceGetDevResource(device, kind))
    groups, count, rest = checked(driver.cuDevSmResourceSplitByCount(1, whole, 0, sms))
    if count != 1:
        raise Unsupported(f"expected one group of {sms} SMs, given {count}")
    flag = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    sides = []
    for resource in (groups[0], rest):
        described = checked(driver.cuDevResourceGenerateDesc([resource], 1))
        context = checked(driver.cuGreenCtxCreate(described, device, int(flag)))
        # Such streams must not wait for the default stream.
        stream = checked(driver.cuGreenCtxStreamCreate(context, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), 0))
        sides.append(Side(torch.cuda.ExternalStream(int(stream)), int(resource.sm.smCount), (context, stream)))
    return sides[0], sides[1]
