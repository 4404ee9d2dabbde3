"""The few calls of the Kubernetes API that the engine makes: list, watch, create and delete.

A thin shell over kr8s, which reads kubeconfig files and service accounts, and renews credentials. Every call has a time
limit; a call that fails raises one of two errors: the API server cannot be reached, or it refused.

A call is never cancelled before its answer begins: in the middle of a TLS handshake the HTTP library (httpcore 1.0.9)
would leave the socket open. Who is cancelled leaves the call behind, and ``close`` waits for those.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isochrone.engines.kubernetes.pods.kubeconfig import check_client
from isochrone.errors import Unavailable

Document = Mapping[str, Any]

#: Seconds for one call, and for the first one, which may wait for DNS.
_CALL_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
#: The server ends a watch after this time; silence for longer means that it is lost.
_WATCH_SECONDS = 60
_SILENCE_SECONDS = _WATCH_SECONDS + 10.0
#: For a TCP connection and its TLS handshake; ``close`` waits a little longer for those that nobody awaits any more.
_HANDSHAKE_SECONDS = 5.0
_CLOSE_SECONDS = _HANDSHAKE_SECONDS + 1.0

#: Objects of one answer to a list: 500 nodes have 5 to 30 MB of JSON.
_PAGE = 500
_UNAUTHORIZED, _GONE = 401, 410


class ClusterUnavailable(Unavailable):
    """The API server does not answer; the cluster may be as it was."""


class Refused(Unavailable):
    """The API server refused a call. ``api_status``: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the Kubernetes API refused ({status}): {message}")
        self.api_status = status


class WatchExpired(Exception):
    """The server no longer has the changes since the given version: everything must be listed again."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects: ``apps/v1`` and ``statefulsets``."""

    version: str
    plural: str
    #: Objects of the whole cluster are in no namespace.
    is_namespaced: bool = True


PODS = Resource("v1", "pods")
NODES = Resource("v1", "nodes", is_namespaced=False)


class ClusterApi:
    """The API server of a kubeconfig file, or of the pod's service account; one namespace."""

    def __init__(self, namespace: str, kubeconfig: Path | None = None) -> None:
        self.namespace = namespace
        self._kubeconfig = kubeconfig
        self._api: Any = None
        self._left_behind: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Harmless if it is connected. Raises ``ConfigError`` and ``ClusterUnavailable``."""
        if self._api is not None:
            return
        check_client()
        import kr8s.asyncio

        try:
            with warnings.catch_warnings():
                # Pods are the same in all versions of Kubernetes that the library warns about.
                warnings.simplefilter("ignore")
                async with asyncio.timeout(_CONNECT_SECONDS):
                    api = await kr8s.asyncio.api(
                        kubeconfig=str(self._kubeconfig) if self._kubeconfig else None, namespace=self.namespace
                    )
                    await api.version()
        except Exception as error:
            where = self._kubeconfig or "KUBECONFIG, ~/.kube/config or the pod's service account"
            raise ClusterUnavailable(
                f"no Kubernetes API answers, by {where}: {_reason(error)}; name a kubeconfig file with --kubeconfig"
            ) from None
        self._api = api

    async def close(self) -> None:
        if self._left_behind:
            _, late = await asyncio.wait(self._left_behind, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        # The library keeps one session per event loop, and has no call that ends it.
        session = self._api._session if self._api is not None else None
        if session is not None:
            await session.aclose()

    async def list(
        self, resource: Resource, selector: str, reduce: Callable[[Document], Document] = lambda document: document
    ) -> tuple[list[Document], str]:
        """The objects with these labels, and the version of the list, from which ``watch`` continues. ``reduce`` keeps
        what is needed of each object: only one page is in memory whole."""
        found: list[Document] = []
        page, more = _PAGE, ""
        while True:
            params = {"labelSelector": selector, **({"limit": str(page)} if page else {})}
            try:
                answer = await self._call("GET", resource, params={**params, **({"continue": more} if more else {})})
            except Refused as error:
                if error.api_status != _GONE or not more:
                    raise
                # The version of the first page is compacted: everything at once, as a list without pages is.
                found, page, more = [], 0, ""
                continue
            found += [reduce(each) for each in answer.get("items") or ()]
            more = str(answer["metadata"].get("continue") or "")
            if not more:
                return found, str(answer["metadata"]["resourceVersion"])

    async def watch(self, resource: Resource, selector: str, since: str) -> AsyncIterator[tuple[str, Document]]:
        """Changes after a version: (ADDED, MODIFIED or DELETED, the object). Ends when the server ends it.

        Raises ``WatchExpired`` and ``ClusterUnavailable``.
        """
        params = {
            "labelSelector": selector,
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        try:
            async with self._begun("GET", resource, _SILENCE_SECONDS, params=params, stream=True) as response:
                async for line in response.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        if event["object"].get("code") == _GONE:
                            raise WatchExpired
                        raise ClusterUnavailable(f"a watch failed: {event['object'].get('message')}")
                    yield event["type"], event["object"]
        except (WatchExpired, ClusterUnavailable, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", 0) == _GONE:
                raise WatchExpired from None
            raise ClusterUnavailable(f"a watch of the Kubernetes API ended: {_reason(error)}") from None

    async def create(self, resource: Resource, document: Document) -> Document:
        return await self._call("POST", resource, document)

    async def delete(self, resource: Resource, name: str, uid: str = "", grace: float | None = None) -> None:
        """Delete one object, only the one with that uid. Harmless if there is none."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = max(0, round(grace))
        try:
            await self._call("DELETE", resource, options, name)
        except Refused as error:
            if error.api_status not in (404, 409):
                raise

    async def _call(
        self,
        method: str,
        resource: Resource,
        document: Document | None = None,
        name: str = "",
        params: Mapping[str, str] | None = None,
    ) -> Document:
        content = json.dumps(document) if document is not None else None

        async def answered(raise_for_status: bool) -> tuple[int, Document]:
            async with self._begun(
                *(method, resource, _CALL_SECONDS, name),
                params=params or {},
                content=content,
                raise_for_status=raise_for_status,
            ) as response:
                return int(response.status_code), response.json() if response.content else {}

        try:
            async with asyncio.timeout(_CALL_SECONDS):
                status, answer = await answered(raise_for_status=False)
                if status == _UNAUTHORIZED:
                    # Asked for errors, the library renews its credentials, and with them the session of all watches.
                    status, answer = await answered(raise_for_status=True)
        except Exception as error:
            status = int(getattr(getattr(error, "response", None), "status_code", 0))
            if status == _UNAUTHORIZED:
                raise Refused(status, _reason(error)) from None
            raise ClusterUnavailable(f"the Kubernetes API does not answer: {_reason(error)}") from None
        if status >= 500 or status == 429:
            raise ClusterUnavailable(f"the Kubernetes API failed ({status}): {answer.get('message', '')}")
        if status >= 400:
            raise Refused(status, str(answer.get("message", "")))
        return dict(answer)

    @asynccontextmanager
    async def _begun(
        self, method: str, resource: Resource, seconds: float, name: str = "", **options: Any
    ) -> AsyncIterator[Any]:
        """A call whose answer begins when the block does; of one that is no stream, the whole answer is there."""
        from httpx import Timeout

        call = self._api.call_api(
            method,
            version=resource.version,
            url=f"{resource.plural}/{name}" if name else resource.plural,
            namespace=self.namespace if resource.is_namespaced else None,
            timeout=Timeout(seconds, connect=_HANDSHAKE_SECONDS),
            **options,
        )
        beginning = asyncio.ensure_future(call.__aenter__())
        try:
            response = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            task = asyncio.create_task(_end(call, beginning))
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)
            raise
        try:
            yield response
        finally:
            await call.__aexit__(None, None, None)


async def _end(call: AbstractAsyncContextManager[Any], beginning: asyncio.Future[Any]) -> None:
    """End a call that nobody awaits, once it began."""
    try:
        await beginning
    except Exception:
        return
    await call.__aexit__(None, None, None)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (str(error) or type(error).__name__)[:300]
