"""Waits until a gateway knows a worker for each of some versions.

Workers have loaded a new version only a moment before it is announced or committed. A gateway that admitted requests
for it before it knew such a worker would reject them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from isochrone.control.agents.link_rules import LinkRules
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.housekeeping import Steps

#: Entries of indexes looked at in one turn of the loop: some 0.2 µs each.
_LOOKED_AT_PER_TURN = 1024


async def discover(gateway: Gateway, versions: Mapping[str, str], rules: LinkRules) -> bool:
    """Read the workers' indexes until each of ``versions`` (by model) is known to be served; False: it is not."""
    ends = time.monotonic() + rules.discovery
    while True:
        await gateway.read_indexes(min(rules.discovery, rules.discovery_round))
        if await gateway.housekeeping.do(_are_served(gateway, versions)):
            return True
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.02)


def _are_served(gateway: Gateway, versions: Mapping[str, str]) -> Steps[bool]:
    """Whether each version is in the index of some worker."""
    # Workers of a pool share one index.
    serving = {id(member.serves): member.serves for member in gateway.fleet.members.values() if member.serves}.values()
    looked = 0
    for name, version in versions.items():
        for index in serving:
            looked += 1
            if version in index.get(name, ()):
                break
        else:
            return False
        if looked >= _LOOKED_AT_PER_TURN:
            looked = 0
            yield
    return True
