"""The actions of the console are operations of the API, and nothing else can be made of what a browser sends."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.console.pages.actions import action_of, start_of
from isochrone.control.api.messages import AbortRequest, RolloutRequest
from isochrone.control.api.routes import OPERATIONS


def operation(method: str, path: str) -> str:
    """The path of the operation that such a request reaches; "": none."""
    for each in OPERATIONS:
        if each.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", each.path), path):
            return each.path
    return ""


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("promote", "/v1/rollouts/{id}/promote"),
        ("abort", "/v1/rollouts/{id}/abort"),
        ("rollback", "/v1/models/{model}/rollback"),
    ],
)
@given(about=st.text(min_size=1, max_size=256))
def test_whatever_the_name_the_operation_stays_the_same(kind: str, path: str, about: str) -> None:
    try:
        about.encode()
    except UnicodeEncodeError:
        return
    action = action_of(kind, about)
    assert action is not None
    assert operation(action.method, action.path) == path


def test_bodies_are_those_of_the_api() -> None:
    abort = action_of("abort", "r1")
    assert abort is not None
    msgspec.convert(abort.body, AbortRequest)
    for cutover, canary in (("", ""), ("strict", "on"), ("fast", "off")):
        body = msgspec.convert(start_of("detector", "2", cutover, canary).body, RolloutRequest)
        assert body.changes == {"detector": "2"}
        assert body.canary == {"": None, "on": True, "off": False}[canary]


@pytest.mark.parametrize(("kind", "about"), [("retire", "x"), ("", "x"), ("abort", ""), ("abort", "x" * 257)])
def test_there_is_no_other_action(kind: str, about: str) -> None:
    assert action_of(kind, about) is None
