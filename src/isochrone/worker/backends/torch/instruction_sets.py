"""Loads of AOTInductor packages without compiler runs.

torch compares the instruction set that a package was compiled for with this machine's, for a warning. To find this
machine's it compiles and runs a program for each set that the CPU has: 10 to 60 s in the first process of a machine.
``packages.misfit`` has made the comparison by what the kernel says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchecked_instruction_sets() -> Iterator[None]:
    """torch takes the CPU's own word for its instruction sets inside. Not for two threads at a time."""
    import torch._inductor.config as config
    from torch._inductor import cpu_vec_isa

    try:
        with config.patch({"cpp.vec_isa_ok": True}):
            yield
    finally:
        # A model that is compiled later in this process needs sets that the compiler knows, too.
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
