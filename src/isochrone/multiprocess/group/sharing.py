"""How much memory a process shares with the others: Linux's /proc/PID/smaps_rollup. Read for logs and scrapes only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one process."""

    #: Resident: shared pages count in full.
    rss: int
    #: Proportional: a page that n processes share counts as 1/n. Those of all processes add up to what they use.
    pss: int
    #: Resident pages that another process maps, too.
    shared: int


def memory(pid: int, proc: Path = Path("/proc")) -> Memory | None:
    """None: the process has ended, or the kernel does not tell."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    kilobytes: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            kilobytes[name] = int(words[0])
    if "Rss" not in kilobytes or "Pss" not in kilobytes:
        return None
    shared = kilobytes.get("Shared_Clean", 0) + kilobytes.get("Shared_Dirty", 0)
    return Memory(kilobytes["Rss"] << 10, kilobytes["Pss"] << 10, shared << 10)
