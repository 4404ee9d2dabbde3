"""Lists of the Kubernetes API come in pages: each is reduced before the next one is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from isochrone.engines.kubernetes.pods.cluster_api import NODES, ClusterApi, Refused


class Answer:
    def __init__(self, status: int, body: dict[str, Any]) -> None:
        self.status_code = status
        self.content = b"given"
        self._body = body

    def json(self) -> dict[str, Any]:
        return self._body


class Pages:
    """Stands in for the library's API object: gives the answers in their order, and keeps what was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []

    @asynccontextmanager
    async def call_api(self, method: str, **given: Any) -> AsyncIterator[Answer]:
        self.asked.append(dict(given["params"]))
        yield self.answers.pop(0)


def page(names: str, more: str = "") -> Answer:
    items = [{"metadata": {"name": name}, "status": {"images": ["large"]}} for name in names]
    return Answer(200, {"metadata": {"resourceVersion": "7", "continue": more}, "items": items})


def listed(pages: Pages) -> tuple[list[Any], str]:
    api = ClusterApi("default")
    api._api = pages
    return asyncio.run(api.list(NODES, "", lambda node: {"metadata": node["metadata"]}))


def named(names: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name}} for name in names]


def test_pages_are_joined_and_reduced() -> None:
    pages = Pages(page("ab", "next"), page("c"))
    assert listed(pages) == (named("abc"), "7")
    assert [(each["limit"], each.get("continue")) for each in pages.asked] == [("500", None), ("500", "next")]


def test_a_list_whose_first_page_is_too_old_begins_again_without_pages() -> None:
    pages = Pages(page("ab", "next"), Answer(410, {"message": "too old"}), page("abc"))
    assert listed(pages) == (named("abc"), "7")
    assert "limit" not in pages.asked[-1]
    assert "continue" not in pages.asked[-1]


def test_a_refusal_is_no_empty_list() -> None:
    with pytest.raises(Refused, match="403"):
        listed(Pages(Answer(403, {"message": "nodes is forbidden"})))
