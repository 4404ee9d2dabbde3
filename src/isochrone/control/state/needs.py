"""What a process needs of its machine, for engines that place processes on machines. A plain value, part of records."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one process."""

    cpus: float = 0.0
    gpus: float = 0.0
    #: Further resources by name, and labels that the machine must have.
    resources: tuple[tuple[str, float], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    #: As in fleet.yaml: any, spread, apart or together.
    placement: str = "any"
    #: The processes that ``placement`` is about, if their machines must be chosen together; "": each is placed alone.
    group: str = ""
    #: Shares of the group, and the one that this process belongs to: the processes of one share have one machine.
    shares: int = 1
    share: int = 0
    processes_per_share: int = 1
    #: It has an address of its own, as in a pod: no other process can take its ports.
    own_address: bool = False
    #: Of the settings of its pod that are not on its command line: another text makes another pod.
    pod: str = ""

    @property
    def alone(self) -> Needs:
        """The same for a process that belongs to no group: one that stands in for another."""
        return replace(self, group="", shares=1, share=0, processes_per_share=1)
