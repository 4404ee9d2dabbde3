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


async def discover(gateway: Gateway, versions: Mapping[str, str], rules: LinkRules) -> bool:
    """Read the workers' indexes until each of ``versions`` (by model) is known to be served; False: it is not."""
    ends = time.monotonic() + rules.discovery
    while True:
        await gateway.read_indexes(min(rules.discovery, rules.discovery_round))
        serving = [member.serves or {} for member in gateway.fleet.members.values()]
        if all(any(version in each.get(name, ()) for each in serving) for name, version in versions.items()):
            return True
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.02)
