"""The division of a GPU's multiprocessors (SMs) into those that are reserved and the rest. Pure.

``green_contexts`` carries it out. The driver divides SMs in steps: 8 on Hopper and later. It would round a count up
without a word, and the rest would be smaller than the operator expects; a count that is no such step is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Major number of the compute capability → smallest part and step, for drivers that do not say it.
#: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GREEN__CONTEXTS.html
_STEPS = {6: (1, 1), 7: (2, 2), 8: (4, 2)}
_LATER_STEPS = (8, 8)


@dataclass(frozen=True, slots=True)
class SmLimits:
    """How a GPU can be divided."""

    #: SMs of the GPU.
    total: int
    #: The smallest part.
    minimum: int
    #: The size of the reserved part is a multiple of it.
    step: int


@dataclass(frozen=True, slots=True)
class SmDivision:
    """SMs of the two parts. They share none."""

    reserved: int
    rest: int


def limits_of(total: int, minimum: int, step: int, compute_capability: int) -> SmLimits:
    """``minimum`` and ``step`` as the driver gives them; 0: it does not."""
    known_minimum, known_step = _STEPS.get(compute_capability, _LATER_STEPS)
    return SmLimits(total, minimum or known_minimum, step or known_step)


def plan_division(limits: SmLimits, reserved: int) -> SmDivision:
    """Raises ``ValueError`` with the counts that are possible."""
    first = -(-limits.minimum // limits.step) * limits.step
    last = (limits.total - limits.minimum) // limits.step * limits.step
    if last < first:
        raise ValueError(f"a GPU that can be divided: this one has {limits.total} SMs, and a part {limits.minimum}")
    if reserved % limits.step or not first <= reserved <= last:
        raise ValueError(
            f"a multiple of {limits.step} from {first} to {last}: the GPU has {limits.total} SMs,"
            f" and the other models need {limits.minimum} of them at least"
        )
    return SmDivision(reserved, limits.total - reserved)
