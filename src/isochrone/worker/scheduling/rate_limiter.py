"""Which instance may run, when instances of all models share resources: Triton's rate limiter, pure.

An instance holds what its ``instance_group.rate_limiter`` asks for while it runs. ``acquire`` takes it or leaves the
instance waiting; ``release`` gives it back and says who of those waiting should try, best first: as in Triton, the one
with the lowest number of runs times its priority. All devices of this server are one, the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from isochrone.errors import InvalidArgument

#: Resource, in lower case (Triton ignores its case) → how much.
Resources = Mapping[str, int]


@dataclass(slots=True)
class _Share:
    """One instance's part."""

    needs: Resources
    #: At least 1; 2 gets half the turns of 1.
    priority: int
    runs: int = 0
    holds: bool = False

    @property
    def turn(self) -> int:
        return self.runs * self.priority


@dataclass(slots=True)
class RateLimiter:
    """``limits`` are the resources that were given on the command line; of others there is as much as the most that
    one instance asks for."""

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
        """The instance is gone; who should try now, as after ``release``."""
        freed = self.release(instance)
        self._waiting.pop(instance, None)
        self._shares.pop(instance, None)
        return [other for other in freed if other != instance]

    def acquire(self, instance: Hashable) -> bool:
        """Whether the instance may run now; if not, it waits and ``release`` will name it."""
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
        """Gives back what an instance holds, if it does. Those that wait, best first, each to call ``acquire``."""
        share = self._shares.get(instance)
        if share is None or not share.holds:
            return []
        share.holds = False
        for name, count in share.needs.items():
            self._used[name] -= count
        return sorted(self._waiting, key=lambda waiting: self._shares[waiting].turn)

    def wait(self, instance: Hashable) -> None:
        """The instance has something to run as soon as there is room."""
        self._waiting[instance] = None

    def withdraw(self, instance: Hashable) -> None:
        """The instance has nothing to run any more."""
        self._waiting.pop(instance, None)

    def _available(self, name: str) -> int:
        limit = self.limits.get(name)
        return limit if limit is not None else max(share.needs.get(name, 0) for share in self._shares.values())
