"""The rate limiter for runners: which of their idle instances may run. On the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isochrone.models.instances import configured_instances
from isochrone.worker.scheduling.rate_limiter import RateLimiter, Resources

if TYPE_CHECKING:
    from isochrone.worker.execution.instances.instance import Instance


class Demand(NamedTuple):
    """The ``rate_limiter`` of an instance group."""

    needs: Resources
    priority: int


def demands_of(config: Any) -> list[Demand]:
    """The demand of each instance of a model."""
    return [
        Demand({resource.name.lower(): resource.count for resource in group.rate_limiter.resources}, _priority(group))
        for group, _, _ in configured_instances(config)
    ]


def _priority(group: Any) -> int:
    return int(group.rate_limiter.priority) or 1


class SharedResources:
    """The rate limiter of the server, and the callbacks of the runners whose instances wait."""

    def __init__(self, limits: Resources) -> None:
        self.limiter = RateLimiter(limits)
        self._pumps: dict[Hashable, Callable[[], None]] = {}

    def join(self, instance: Instance, demand: Demand, pump: Callable[[], None]) -> None:
        self._pumps[instance] = pump
        self.limiter.join(instance, demand.needs, demand.priority)

    def leave(self, instance: Instance) -> None:
        waiting = self.limiter.leave(instance)
        self._pumps.pop(instance, None)
        self.wake(waiting)

    def wake(self, waiting: Iterable[Hashable]) -> None:
        """Calls each runner once, in order; instances that cannot run yet wait again."""
        loop = asyncio.get_running_loop()
        for pump in dict.fromkeys(self._pumps[instance] for instance in waiting):
            loop.call_soon(pump)


class ResourceGate:
    """The gate of one runner whose instances need resources."""

    def __init__(self, shared: SharedResources, demands: Sequence[Demand]) -> None:
        self._shared = shared
        self._demands = demands
        self._instances: set[Instance] = set()

    def add(self, instance: Instance, pump: Callable[[], None]) -> None:
        self._instances.add(instance)
        self._shared.join(instance, self._demands[instance.number], pump)

    def enter(self, idle: list[Instance]) -> bool:
        """Whether an idle instance may run. It then holds its resources and is the last in ``idle``."""
        limiter = self._shared.limiter
        for instance in idle:
            if limiter.acquire(instance):
                for other in idle:
                    limiter.withdraw(other)
                idle.remove(instance)
                idle.append(instance)
                return True
        return False

    def exit(self, instance: Instance, *, again: bool = False) -> None:
        """The run has ended, or did not start. ``again``: the instance has more to run and waits for its turn."""
        limiter = self._shared.limiter
        if again:
            limiter.wait(instance)
        self._shared.wake(limiter.release(instance))

    def remove(self, instance: Instance) -> None:
        self._instances.discard(instance)
        self._shared.leave(instance)

    def close(self) -> None:
        for instance in list(self._instances):
            self.remove(instance)
