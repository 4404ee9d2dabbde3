"""A metrics page put together from pieces, so that a long one can be rendered in many turns of the event loop.

A sample takes some 10 µs to render, and a gateway has seventeen of each model: a page of a thousand models, rendered at
once, would hold the loop for 200 ms. Each piece is a few families with some of their samples; the page has each family
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from isochrone.observe.metrics.page_formats import Encode, OneFamily

#: Ends a page in the OpenMetrics format.
_END = b"# EOF\n"


class MetricsPieces:
    """The pieces of one page. ``encode``: as ``page_formats`` chooses it."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        #: By family, in the order in which they came.
        self._texts: dict[str, list[bytes]] = {}
        self._end = b""

    def add(self, families: Iterable[Metric]) -> None:
        """Some families; further samples of one that was added before follow those."""
        for family in families:
            text = self._encode(OneFamily(family))
            if text.endswith(_END):
                self._end = _END
                text = text[: -len(_END)]
            texts = self._texts.setdefault(family.name, [])
            texts.append(_without_comments(text) if texts else text)

    def page(self) -> bytes:
        return b"".join(self.families())

    def families(self) -> Iterator[bytes]:
        """The text of each family in turn, and the end: to put a page of many pieces together step by step."""
        for texts in self._texts.values():
            yield b"".join(texts)
        if self._end:
            yield self._end


def _without_comments(text: bytes) -> bytes:
    """Without the name, help and type that begin a family."""
    while text.startswith(b"# "):
        text = text[text.index(b"\n") + 1 :]
    return text
