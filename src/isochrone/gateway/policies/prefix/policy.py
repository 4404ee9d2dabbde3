"""prefix: the worker that was lately sent the longest common beginning of the prompt, unless it is overloaded.

A model that generates text keeps what it has computed for the beginning of a prompt (its KV cache), and skips it when
another prompt begins alike. A worker takes part while its load is at most ``load_factor`` times the lowest load plus
``slack``; beyond that the next shorter beginning decides, and in the end the lowest load. Requests without a prompt go
by load. Sources: the cache-aware routing of SGLang (Zheng et al., "SGLang: Efficient Execution of Structured Language
Model Programs", NeurIPS 2024) and Preble (Srivatsa et al., ICLR 2025), with hashed pieces instead of a radix tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar

from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.prefix.index import PrefixIndex, chain_of
from isochrone.gateway.policies.toolkit.options import number, whole
from isochrone.gateway.policies.toolkit.scores import ScoredPolicy
from isochrone.gateway.replicas import Replica


class Prefix(ScoredPolicy):
    """``piece_bytes``: of a prompt per hash; ``most_pieces``: of a prompt that are compared; ``entries``: hashes
    remembered; ``load_factor``, ``slack``: the limit of a worker's load, in requests, beside the lowest load."""

    name = "prefix"
    reads_prompts: ClassVar[bool] = True

    def __init__(
        self,
        random: Random,
        *,
        piece_bytes: int = 256,
        most_pieces: int = 64,
        entries: int = 65_536,
        load_factor: float = 1.5,
        slack: int = 4,
    ) -> None:
        super().__init__(random)
        self._piece = whole(self.name, "piece_bytes", piece_bytes, 16, 65_536)
        self._most = whole(self.name, "most_pieces", most_pieces, 1, 1024)
        self._index = PrefixIndex(whole(self.name, "entries", entries, 1, 1 << 24))
        self._load_factor = number(self.name, "load_factor", load_factor, 1)
        self._slack = whole(self.name, "slack", slack, 0, 1 << 20)
        self._by_address: dict[str, Replica] = {}
        #: Choices of a worker that had a beginning of the prompt; choices of a shorter one, or of none, because the
        #: worker with the longest was overloaded; and choices for prompts that no worker had seen.
        self.matched = self.overloaded = self.unmatched = 0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        super().replicas_changed(replicas)
        self._by_address = {replica.endpoint.address: replica for replica in replicas}

    def choose(self, demand: Demand, now: int) -> Replica:
        least = super().choose(demand, now)
        if not demand.prompt:
            return least
        chain = chain_of(demand.prompt, self._piece, self._most)
        chosen = self._holder(chain, least, demand.avoid, now)
        # Before it is sent: a request that follows at once must find it. Wrong entries, of requests that went elsewhere
        # in the end, are forgotten like others.
        self._index.add(chain, chosen.endpoint.address)
        return chosen

    def counts(self) -> Mapping[str, int]:
        return {
            "prefix_matched": self.matched,
            "prefix_overloaded": self.overloaded,
            "prefix_unmatched": self.unmatched,
        }

    def _holder(self, chain: Sequence[bytes], least: Replica, avoid: Sequence[Replica], now: int) -> Replica:
        limit = self._load_factor * least.load(now) + self._slack
        is_overloaded = False
        for piece in reversed(chain):
            best: Replica | None = None
            for address in self._index.holders(piece):
                replica = self._by_address.get(address)
                if replica is None or replica in avoid:
                    continue
                if replica.load(now) > limit:
                    is_overloaded = True
                elif best is None or replica.load(now) < best.load(now):
                    best = replica
            if best is not None:
                self._count(is_overloaded)
                return best
        if is_overloaded:
            self.overloaded += 1
        else:
            self.unmatched += 1
        return least

    def _count(self, is_overloaded: bool) -> None:
        if is_overloaded:
            self.overloaded += 1
        else:
            self.matched += 1

    def _score(self, replica: Replica, now: int) -> float:
        return (replica.load(now) + 1) * (1 + 8 * replica.error_rate)
