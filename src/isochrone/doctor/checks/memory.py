"""Checks of memory: huge pages, swap."""

from __future__ import annotations

from isochrone.doctor.checks.check import KERNEL, Check, compared, unknown
from isochrone.doctor.facts import Facts, Measured, Unknown
from isochrone.doctor.findings import Change, Finding, Severity

_HUGE = "sys/kernel/mm/transparent_hugepage"
_HUGE_DOC = f"{KERNEL}/admin-guide/mm/transhuge.html"
_VM_DOC = f"{KERNEL}/admin-guide/sysctl/vm.html#swappiness"
#: vm.swappiness up to which the kernel takes pages of programs only when the file cache is nearly gone.
_LITTLE = 10


def huge_pages(facts: Facts, measured: Measured) -> Finding:
    value, defrag, stalls = facts.memory.huge_pages, facts.memory.huge_page_defrag, facts.memory.compaction_stalls
    effect = compared(
        "first write to fresh memory", measured.first_touch, "with small pages", measured.first_touch_small
    )
    if isinstance(value, Unknown):
        return unknown("huge_pages", value, effect, _HUGE_DOC)
    found = f"transparent huge pages: {value}"
    changes = []
    if value == "always":
        changes.append(Change(f"{_HUGE}/enabled", value, "madvise"))
    # "always" waits for compaction in any program; the kernel's default, "madvise", only where a program asked for it.
    if defrag == "always":
        found += ", defrag always"
        changes.append(Change(f"{_HUGE}/defrag", "always", "madvise"))
    if not isinstance(stalls, Unknown) and stalls:
        effect += f"{'; ' if effect else ''}{stalls} allocations waited for compaction since boot"
    if not changes:
        return Finding("huge_pages", Severity.OK, found, effect=effect, source=_HUGE_DOC)
    return Finding(
        "huge_pages",
        Severity.COSTS,
        found,
        "The first write to fresh memory clears 2 MiB instead of 4 KiB, or waits until the kernel has freed such a"
        " page: in the middle of a request. With madvise, programs that ask for huge pages still get them.",
        effect,
        changes=tuple(changes),
        source=_HUGE_DOC,
    )


def swap(facts: Facts, measured: Measured) -> Finding:
    total, free = facts.memory.swap_total_kib, facts.memory.swap_free_kib
    swappiness, swapped = facts.memory.swappiness, facts.memory.swapped_in
    if isinstance(total, Unknown):
        return unknown("swap", total, source=_VM_DOC)
    if not total:
        return Finding("swap", Severity.OK, "no swap", source=_VM_DOC)
    if isinstance(swappiness, Unknown):
        return unknown("swap", swappiness, source=_VM_DOC)
    used = "an unknown part" if isinstance(free, Unknown) else f"{(total - free) // 1024} MiB"
    found = f"{total // 1024} MiB of swap, {used} in use; vm.swappiness is {swappiness}"
    grown = measured.swapped_in or 0
    effect = "" if isinstance(swapped, Unknown) else f"{swapped} pages read back since boot, {grown} of them just now"
    if swappiness <= _LITTLE and not grown:
        return Finding("swap", Severity.OK, found, effect=effect, source=_VM_DOC)
    change = Change("proc/sys/vm/swappiness", str(swappiness), str(_LITTLE))
    return Finding(
        "swap",
        Severity.COSTS if grown else Severity.ADVICE,
        found,
        "A request that needs a page of a model that was swapped out waits for the disk.",
        effect,
        by_hand=() if swappiness > _LITTLE else ("swapoff -a",),
        changes=(change,) if swappiness > _LITTLE else (),
        source=_VM_DOC,
    )


CHECKS: tuple[Check, ...] = (huge_pages, swap)
