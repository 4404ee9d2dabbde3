"""A watch that fails over between members without missing a change.

A member that is cut off from the majority leaves a watch silent. So a read that needs the majority is sent to the
member twice a second; if it fails, the watch continues at another member, from its last revision.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from isochrone.store.base import Changes
from isochrone.store.etcd.api import EtcdApi
from isochrone.store.etcd.errors import EndpointFailed
from isochrone.store.etcd.messages import read_changes, watch_request

CHECK_EVERY_SECONDS = 0.5
#: Before the next member, so that members that drop all watches are not retried without a pause.
_PAUSE_SECONDS = 0.05


async def watch_changes(api: EtcdApi, prefix: str, after: int) -> AsyncGenerator[Changes, None]:
    """Raise ``Compacted``, or ``StoreUnavailable`` if no member belongs to a majority."""
    while True:
        endpoint = await api.member_with_majority(prefix)
        try:
            async with contextlib.aclosing(_watch_at(api, endpoint, prefix, after)) as changes_there:
                async for changes in changes_there:
                    after = changes.revision
                    yield changes
        except EndpointFailed:
            api.avoid(endpoint)
            await asyncio.sleep(_PAUSE_SECONDS)


async def _watch_at(api: EtcdApi, endpoint: str, prefix: str, after: int) -> AsyncGenerator[Changes, None]:
    arrived: asyncio.Queue[Changes | Exception] = asyncio.Queue()

    async def read() -> None:
        try:
            async with api.stream(endpoint, "watch", watch_request(prefix, after)) as messages:
                async for message in messages:
                    changes = read_changes(message)
                    if changes is not None:
                        arrived.put_nowait(changes)
                    elif message.get("canceled"):
                        reason = message.get("cancel_reason", "it ended the watch")
                        raise EndpointFailed(endpoint, reason, unprocessed=False)
        except Exception as error:
            arrived.put_nowait(error)

    async def check() -> None:
        try:
            while True:
                await asyncio.sleep(CHECK_EVERY_SECONDS)
                await api.check(endpoint, prefix)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(read()), asyncio.create_task(check())]
    try:
        while True:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
