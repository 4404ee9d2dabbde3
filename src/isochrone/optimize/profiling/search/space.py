"""The configurations of a model on a machine: rows of a batch, threads of an instance, instances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Instances that a full sweep tries on a machine with fewer cores, as Triton's Model Analyzer does by default.
_SWEEP_INSTANCES = 5
#: More instances of one model on one machine are not tried.
_MOST_INSTANCES = 64


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """One way to run a model."""

    batch: int
    threads: int
    instances: int

    @property
    def pair(self) -> tuple[int, int]:
        """What a load decides: batches of any size run on the same instances."""
        return self.threads, self.instances

    @property
    def cores(self) -> int:
        return self.threads * self.instances

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.threads} × {self.instances} (threads × instances)"


@dataclass(frozen=True, slots=True)
class Space:
    """The configurations that a search may measure: never more threads in all than cores."""

    batches: tuple[int, ...]
    threads: tuple[int, ...]
    instances: tuple[int, ...]
    cores: int

    def __iter__(self) -> Iterator[Configuration]:
        for threads in self.threads:
            for instances in self.instances:
                if threads * instances <= self.cores:
                    for batch in self.batches:
                        yield Configuration(batch, threads, instances)

    def sweep(self) -> list[Configuration]:
        """A full sweep, as it is usual without knowledge of the model: every size with every number of threads and
        every number of instances, whether the machine has cores for all of them or not."""
        instances = range(1, max(self.instances[-1], _SWEEP_INSTANCES) + 1) if len(self.instances) > 1 else (1,)
        return [
            Configuration(batch, threads, count)
            for threads in self.threads
            for count in instances
            for batch in self.batches
        ]


def make_space(max_batch_size: int, cores: int, *, has_threads: bool, most_instances: int) -> Space:
    """``max_batch_size`` 0: the model has no batches. ``most_instances``: as many as fit into memory."""
    return Space(
        doublings(max(1, max_batch_size)),
        doublings(cores) if has_threads else (1,),
        tuple(range(1, max(1, min(cores, most_instances, _MOST_INSTANCES)) + 1)),
        cores,
    )


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and ``most`` itself."""
    sizes = [1]
    while sizes[-1] * 2 < most:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes if most == 1 else [*sizes, most])
