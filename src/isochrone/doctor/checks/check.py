"""What all checks share."""

from __future__ import annotations

from collections.abc import Callable

from isochrone.doctor.facts import Facts, Measured, Times, Unknown
from isochrone.doctor.findings import Finding, Severity

Check = Callable[[Facts, Measured], Finding]

KERNEL = "https://docs.kernel.org"
IP_SYSCTL = f"{KERNEL}/networking/ip-sysctl.html"
NET_SYSCTL = f"{KERNEL}/admin-guide/sysctl/net.html"


def unknown(check: str, value: Unknown, effect: str = "", source: str = "") -> Finding:
    return Finding(check, Severity.UNKNOWN, value.reason, effect=effect, source=source)


def compared(what: str, now: Times | None, other_name: str, other: Times | None) -> str:
    """``wake-up 30.1 µs (p99 …); without C-states 12.0 µs (p99 …)``; empty without a measurement."""
    if now is None:
        return ""
    return f"{what} {now}" + ("" if other is None else f"; {other_name} {other}")
