"""The formats of metrics pages: what the Accept header asks for, and one of our own between the processes of a group.

The processes of one server hand their pages to a coordinator in plain text, which has no exemplars. Its own format is
plain text with a comment for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

#: The Accept header of a coordinator.
PLAIN_WITH_EXEMPLARS: Final = "text/plain; exemplars=1"
#: Begins a comment with an exemplar: the sample that it belongs to, and the exemplar as OpenMetrics writes it.
EXEMPLAR: Final = "# EXEMPLAR "

Encode = Callable[[Collector], bytes]


class OneFamily(Collector):
    """A page of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def encoder(accept: str) -> tuple[Encode, str]:
    """What writes a page in the format of an Accept header, and the content type."""
    if accept == PLAIN_WITH_EXEMPLARS:
        plain, content_type = choose_encoder("")
        return lambda families: _with_comments(families, plain), content_type
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # prometheus_client raises for a malformed version in the header.
        return choose_encoder("")


def _with_comments(families: Collector, plain: Encode) -> bytes:
    parts: list[bytes] = []
    for family in families.collect():
        text = plain(OneFamily(family))
        parts.append(text)
        if family.type == "histogram":
            parts.append(_comments(family, text.decode()))
    return b"".join(parts)


def _comments(family: Metric, text: str) -> bytes:
    # Not splitlines: a label may hold any character but a line feed.
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    comments = []
    for line, sample in zip(lines, family.samples, strict=True):
        if sample.exemplar is not None:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.exemplar.labels.items())
            value, when = sample.exemplar.value, sample.exemplar.timestamp
            comments.append(f"{EXEMPLAR}{line.rpartition(' ')[0]} {{{labels}}} {value} {when}\n")
    return "".join(comments).encode()
