"""Read the metrics pages of many processes at once; each reading is kept for comparison with the next.

A page that cannot be read in its time gives no figures. The threads are daemons: a process that hangs never delays the
end of the command.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from types import TracebackType

import httpx

from isochrone.cli.api_tls import api_tls
from isochrone.cli.top.figures import Pair
from isochrone.cli.top.readings import Reading, read_page

#: Seconds for one operation on a connection, and for a whole page or all pages of one update.
_TIMEOUT = 2.0
_WHOLE_TIMEOUT = 5.0
#: A page with a thousand models has some 30 MB.
_MOST_BYTES = 64 * 2**20
_THREADS = 16


class PageFailed(Exception):
    """A page that cannot be read; the message says why."""


class Pages:
    """The metrics pages of a fleet, or of one process."""

    def __init__(self, token: httpx.Auth | None = None) -> None:
        """``token``: adds the user's."""
        self._client = httpx.Client(timeout=_TIMEOUT, transport=api_tls().transport(), trust_env=False)
        self._token = token
        self._last: dict[str, tuple[float, Reading]] = {}

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def read_all(self, urls: Mapping[str, str], strangers: Collection[str] = ()) -> dict[str, Pair]:
        """By name: the last reading and the present one. Without an earlier reading, the first is empty. ``strangers``:
        names of servers that do not get the user's token."""
        todo, taken = deque(urls.items()), dict[str, tuple[float, Reading]]()

        def read_some() -> None:
            while todo:
                try:
                    name, url = todo.popleft()
                    taken[name] = self._read(url, None if name in strangers else self._token)
                except (IndexError, PageFailed):
                    continue

        threads = [threading.Thread(target=read_some, daemon=True) for _ in range(min(_THREADS, len(urls)))]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + _WHOLE_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        # Threads that are not done read no further page; what they still find is not used.
        todo.clear()
        last, now = self._last, dict(taken)
        self._last = {name: _remembering(last.get(name), each) for name, each in now.items()}
        return {name: _pair(last.get(name), now[name]) for name in urls if name in now}

    def read(self, url: str) -> Pair:
        """The same of one page; raises ``PageFailed``."""
        last = self._last.pop(url, None)
        taken = self._read(url, self._token)
        self._last[url] = _remembering(last, taken)
        return _pair(last, taken)

    def _read(self, url: str, token: httpx.Auth | None) -> tuple[float, Reading]:
        ends = time.monotonic() + _WHOLE_TIMEOUT
        content = bytearray()
        try:
            with self._client.stream("GET", url, headers={"accept": "text/plain"}, auth=token) as answer:
                answer.raise_for_status()
                for part in answer.iter_bytes():
                    content += part
                    if time.monotonic() > ends or len(content) > _MOST_BYTES:
                        raise PageFailed(
                            f"the page is larger than {_MOST_BYTES} bytes or takes over {_WHOLE_TIMEOUT} s"
                        )
            return time.monotonic(), read_page(content.decode("utf-8", "replace"))
        except httpx.HTTPStatusError as error:
            raise PageFailed(f"it answered {error.response.status_code}") from None
        except httpx.TimeoutException:
            raise PageFailed(f"no answer within {_TIMEOUT:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RuntimeError) as error:
            # RuntimeError: the client was closed meanwhile.
            raise PageFailed(str(error)) from None


def _remembering(before: tuple[float, Reading] | None, after: tuple[float, Reading]) -> tuple[float, Reading]:
    return after if before is None else (after[0], after[1].remembering(before[1]))


def _pair(before: tuple[float, Reading] | None, after: tuple[float, Reading]) -> Pair:
    # Without an earlier reading there are no rates.
    at, reading = before or (after[0], Reading())
    return reading, after[1], after[0] - at
