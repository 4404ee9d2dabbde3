"""Checks of what runs where: NUMA nodes, and the interrupts of network cards."""

from __future__ import annotations

from isochrone.doctor.checks.check import KERNEL, Check, unknown
from isochrone.doctor.facts import Facts, Measured, Unknown
from isochrone.doctor.findings import Change, Finding, Severity

_NUMA_DOC = f"{KERNEL}/admin-guide/sysctl/kernel.html#numa-balancing"
_POLICY_DOC = f"{KERNEL}/admin-guide/mm/numa_memory_policy.html"
_SCALING_DOC = f"{KERNEL}/networking/scaling.html"
#: With fewer CPUs, one that takes all interrupts is as good as any other order.
_MANY_CPUS = 4
#: The share of a card's interrupts on one CPU that is no longer spread.
_ONE_SIDED = 0.8
#: Fewer interrupts since boot say nothing.
_ENOUGH = 10_000


def numa_placement(facts: Facts, measured: Measured) -> Finding:
    nodes = facts.cpu.nodes
    if isinstance(nodes, Unknown):
        return unknown("numa_placement", nodes, source=_POLICY_DOC)
    used = [node for node, cpus in nodes.items() if cpus & facts.cpu.usable]
    if len(used) <= 1:
        found = f"{len(nodes)} NUMA node{'s' if len(nodes) != 1 else ''}; this process may use one"
        return Finding("numa_placement", Severity.OK, found, source=_POLICY_DOC)
    return Finding(
        "numa_placement",
        Severity.ADVICE,
        f"this process may use CPUs of {len(used)} NUMA nodes",
        "A thread that moves to another node reads its tensors from distant memory. One worker per node, bound to it,"
        " avoids that.",
        by_hand=tuple(f"numactl --cpunodebind={node} --membind={node} isochrone serve MODELS" for node in used),
        source=_POLICY_DOC,
    )


def numa_balancing(facts: Facts, measured: Measured) -> Finding:
    value, nodes = facts.cpu.numa_balancing, facts.cpu.nodes
    if not isinstance(nodes, Unknown) and len(nodes) <= 1:
        return Finding("numa_balancing", Severity.OK, "one NUMA node", source=_NUMA_DOC)
    if isinstance(value, Unknown):
        return unknown("numa_balancing", value, source=_NUMA_DOC)
    found = f"kernel.numa_balancing is {value}"
    if not value:
        return Finding("numa_balancing", Severity.OK, found, source=_NUMA_DOC)
    return Finding(
        "numa_balancing",
        Severity.ADVICE,
        found,
        "The kernel unmaps pages to see which CPU uses them: each next access is a page fault. Workers that are bound"
        " to a node gain nothing from it.",
        changes=(Change("proc/sys/kernel/numa_balancing", str(value), "0"),),
        source=_NUMA_DOC,
    )


def interrupts(facts: Facts, measured: Measured) -> Finding:
    cards = facts.cpu.interfaces
    if isinstance(cards, Unknown):
        return unknown("interrupts", cards, source=_SCALING_DOC)
    if not cards:
        reason = Unknown("no network card with interrupts of its own is visible: a container, or virtual interfaces")
        return unknown("interrupts", reason, source=_SCALING_DOC)
    shares = {card.name: max(card.interrupts) / max(1, sum(card.interrupts)) for card in cards}
    found = "; ".join(
        f"{card.name}: {shares[card.name]:.0%} of the interrupts on one of {len(card.interrupts)} CPUs"
        for card in cards
    )
    one_sided = [
        card
        for card in cards
        if len(card.interrupts) >= _MANY_CPUS
        and sum(card.interrupts) >= _ENOUGH
        and shares[card.name] > _ONE_SIDED
        and not card.steered
    ]
    if not one_sided:
        return Finding("interrupts", Severity.OK, found, source=_SCALING_DOC)
    return Finding(
        "interrupts",
        Severity.ADVICE,
        found,
        "One CPU receives all packets: under load it delays every connection, and the process that runs on it.",
        by_hand=tuple(
            f"ethtool -L {card.name} combined {len(card.interrupts)}"
            if card.receive_queues > 1
            else f"echo {mask(len(card.interrupts))} > /sys/class/net/{card.name}/queues/rx-0/rps_cpus"
            for card in one_sided
        ),
        source=_SCALING_DOC,
    )


def mask(cpus: int) -> str:
    """The first CPUs as the kernel reads a mask: groups of 32 bits in hexadecimal, the highest first."""
    groups = [min(32, cpus - first) for first in range(0, cpus, 32)]
    return ",".join(f"{(1 << bits) - 1:x}" for bits in reversed(groups))


CHECKS: tuple[Check, ...] = (numa_placement, numa_balancing, interrupts)
