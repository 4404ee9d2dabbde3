"""Keeps the objects of one kind in memory, by a list and a watch.

A watch that ends continues where it was; one that expired, and one that is lost, begin with a new list, so that no
change is missed. While the API server is away the objects stay as they were last seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from isochrone.engines.kubernetes.pods.cluster_api import (
    ClusterApi,
    Document,
    Resource,
    WatchExpired,
)

log = structlog.get_logger(__name__)

#: Seconds before a watch that was lost, or that ended at once, is tried again: first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: Seconds that a watch must last to count as one that worked.
_LASTING = 1.0


class ObjectWatch:
    """``changed`` is called with the name of each object that changed; ``listed`` after each list, with the time at
    which it began. ``reduce`` keeps what is needed of each object, and must keep its name: nodes and pods of a large
    cluster have hundreds of megabytes."""

    def __init__(
        self,
        api: ClusterApi,
        resource: Resource,
        selector: str,
        changed: Callable[[str], None],
        listed: Callable[[float], None] = lambda since: None,
        reduce: Callable[[Document], Document] = lambda document: document,
    ) -> None:
        self._api = api
        self._resource = resource
        self._selector = selector
        self._changed = changed
        self._listed = listed
        self._reduce = reduce
        self.objects: dict[str, Document] = {}
        self._version = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List the objects, and follow their changes from then on. Raises ``Unavailable``."""
        await self._list()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, document: Document) -> None:
        """An object that was just created; the watch may have seen a later state already."""
        self.objects.setdefault(str(document["metadata"]["name"]), self._reduce(document))

    async def _list(self) -> None:
        since = monotonic()
        items, self._version = await self._api.list(self._resource, self._selector, self._reduce)
        before, self.objects = self.objects, {str(each["metadata"]["name"]): each for each in items}
        for name in sorted({*before, *self.objects}):
            if before.get(name) != self.objects.get(name):
                self._tell(name)
        self._listed(since)

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        is_away = must_list = False
        while True:
            began = monotonic()
            try:
                if must_list:
                    await self._list()
                    must_list = is_away = False
                async for kind, document in self._api.watch(self._resource, self._selector, self._version):
                    self._take(kind, document)
            except WatchExpired:
                must_list = True
            except Exception as error:
                # Also an answer that makes no sense: nobody else would start the watch again.
                if not is_away:
                    log.warning("the Kubernetes API is away", kind=self._resource.plural, error=str(error))
                must_list = is_away = True
            if monotonic() - began >= _LASTING:
                pause = _FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _take(self, kind: str, document: Document) -> None:
        metadata = document["metadata"]
        self._version = str(metadata["resourceVersion"])
        if kind == "BOOKMARK":
            return
        name = str(metadata["name"])
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = self._reduce(document)
        self._tell(name)

    def _tell(self, name: str) -> None:
        try:
            self._changed(name)
        except Exception as error:
            # One object that makes no sense must not keep the others from being seen.
            log.error("a change of an object failed unexpectedly", name=name, exc_info=error)
