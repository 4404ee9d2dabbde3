"""Maglev hashing: a key's requests go to one worker, by one look into a table that every gateway builds alike.

Workers take turns to claim their next preferred entry until the table is full, so that each has the same number of
entries within one. A change of workers moves their share and a few keys more. Source: Eisenbud et al., "Maglev: A Fast
and Reliable Software Network Load Balancer", NSDI'16, section 3.4. Unlike ``consistent_hash`` it has no bound on load.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.errors import ConfigError
from isochrone.gateway.policies import hashing
from isochrone.gateway.policies.affinity import AffinityPolicy
from isochrone.gateway.policies.sampling import one
from isochrone.gateway.targets import Target

#: Primes, so that every stride visits every entry.
TABLE_SIZES = (1021, 4093, 16381, 65537, 655373)
#: The smallest table with so many entries per worker is taken: the shares then differ by 1.6 % at most.
_ENTRIES_PER_WORKER = 64


class Maglev(AffinityPolicy):
    """``table_size``: entries, one of a few primes; 0: by the number of workers. All gateways must use the same."""

    name = "maglev"

    def __init__(self, random: Random, *, table_size: int = 0) -> None:
        super().__init__(random)
        if table_size not in (0, *TABLE_SIZES):
            known = ", ".join(map(str, (0, *TABLE_SIZES)))
            raise ConfigError(f"policy {self.name}", "table_size", f"one of {known}", repr(table_size))
        self._table_size = table_size
        self._table: list[Target] = []

    def _build(self, targets: Sequence[Target]) -> None:
        wanted = len(targets) * _ENTRIES_PER_WORKER
        size = self._table_size or next((size for size in TABLE_SIZES if size >= wanted), TABLE_SIZES[-1])
        claims = claim([target.endpoint.address for target in targets], size) if targets else []
        self._table = [targets[slot] for slot in claims]

    def _look_up(self, key: int, avoid: Sequence[Target]) -> Target:
        table = self._table
        size = len(table)
        entry = key % size
        target = table[entry]
        if target not in avoid:
            return target
        for step in range(entry + 1, entry + size):
            target = table[step if step < size else step - size]
            if target not in avoid:
                return target
        # A table smaller than the fleet has no entry for some.
        return one(self._random, self.targets, avoid)


def claim(addresses: Sequence[str], size: int) -> list[int]:
    """For each entry of the table the index of the address that has claimed it."""
    entries = [hashing.of_address(address, b"offset") % size for address in addresses]
    strides = [hashing.of_address(address, b"skip") % (size - 1) + 1 for address in addresses]
    table = [-1] * size
    left = size
    while True:
        for slot, stride in enumerate(strides):
            entry = entries[slot]
            while table[entry] >= 0:
                entry += stride
                if entry >= size:
                    entry -= size
            table[entry] = slot
            entries[slot] = entry
            left -= 1
            if not left:
                return table
