"""Triton's rate limiter: which instance may run when the instances of all models share resources. Pure.

An instance holds the resources of its ``instance_group.rate_limiter`` while it runs. ``acquire`` takes them, or makes
the instance wait. ``release`` returns them and the waiting instances that should try, best first: as in Triton, the
lowest number of runs times priority. All devices of this server count as one, the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from isochrone.errors import InvalidArgument

#: Resource, in lower case (Triton ignores the case) → amount.
Resources = Mapping[str, int]


@dataclass(slots=True)
class _Share:
    """The resources and the priority of one instance."""

    needs: Resources
    #: At least 1; an instance with 2 gets half the turns of one with 1.
    priority: int
    runs: int = 0
    holds: bool = False

    @property
    def turn(self) -> int:
        return self.runs * self.priority


@dataclass(slots=True)
class RateLimiter:
    """``limits`` come from the command line. Of other resources, the largest need of one instance is available."""

    limits: Resources = field(default_factory=dict)
    _shares: dict[Hashable, _Share] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)
    #: In the order they began to wait, which decides between equal turns.
    _waiting: dict[Hashable, None] = field(default_factory=dict)

    def check(self, needs: Resources, model: str) -> None:
        """Raises if an instance with these needs could never run."""
        for name, count in needs.items():
            limit = self.limits.get(name)
            if limit is not None and limit < count:
                raise InvalidArgument(
                    f"model '{model}': instance_group.rate_limiter asks for {count} of resource '{name}', and"
                    f" --rate-limit-resource limits it to {limit}; raise that, or ask for less"
                )

    def join(self, instance: Hashable, needs: Resources, priority: int) -> None:
        self._shares[instance] = _Share(needs, max(1, priority))

    def leave(self, instance: Hashable) -> list[Hashable]:
        """Removes an instance; returns the waiting instances, as ``release``."""
        freed = self.release(instance)
        self._waiting.pop(instance, None)
        self._shares.pop(instance, None)
        return [other for other in freed if other != instance]

    def acquire(self, instance: Hashable) -> bool:
        """Whether the instance may run now; if not, it waits and ``release`` will return it."""
        share = self._shares[instance]
        used = self._used
        if any(used.get(name, 0) + count > self._available(name) for name, count in share.needs.items()):
            self.wait(instance)
            return False
        for name, count in share.needs.items():
            used[name] = used.get(name, 0) + count
        share.holds = True
        share.runs += 1
        self._waiting.pop(instance, None)
        return True

    def release(self, instance: Hashable) -> list[Hashable]:
        """Frees the resources that an instance holds. Returns the waiting instances, which should ``acquire``."""
        share = self._shares.get(instance)
        if share is None or not share.holds:
            return []
        share.holds = False
        for name, count in share.needs.items():
            self._used[name] -= count
        return sorted(self._waiting, key=lambda waiting: self._shares[waiting].turn)

    def wait(self, instance: Hashable) -> None:
        """The instance waits for its resources."""
        self._waiting[instance] = None

    def withdraw(self, instance: Hashable) -> None:
        """The instance has nothing to run and does not wait."""
        self._waiting.pop(instance, None)

    def _available(self, name: str) -> int:
        limit = self.limits.get(name)
        return limit if limit is not None else max(share.needs.get(name, 0) for share in self._shares.values())
