"""Upstreams as people write them: read back exactly, or refused with the part that is wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import ConfigError
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream


@pytest.mark.parametrize(
    ("text", "upstream"),
    [
        ("10.0.0.7:8000", Upstream("10.0.0.7", 8000, 8000)),
        (" http://worker:80 ", Upstream("worker", 80, 80)),
        ("[::1]:8000", Upstream("::1", 8000, 8000)),
        ("a:8000,grpc=8001,metrics=8002", Upstream("a", 8000, 8001, 8002)),
        ("a:1,api=openai", Upstream("a", 1, 1, api="openai")),
        ("a:1, tier=edge, device=gpu, region=eu", Upstream("a", 1, 1, 0, "edge", "gpu", "eu")),
    ],
)
def test_forms(text: str, upstream: Upstream) -> None:
    assert parse_upstream(text) == upstream


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "address"),
        ("worker", "address"),
        (":8000", "address"),
        ("worker:", "port"),
        ("worker:http", "port"),
        ("worker:0", "port"),
        ("worker:65536", "port"),
        ("worker:8000,grpc", "grpc"),
        ("worker:8000,grpc=x", "grpc"),
        ("worker:8000,tire=edge", "tire"),
        ("worker:8000,", "option"),
        ("worker:8000,api=kserve", "api"),
    ],
)
def test_mistakes_name_their_part(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(word)) as caught:
        parse_upstream(text, "workers.txt:7")
    assert "workers.txt:7" in str(caught.value)


@given(st.from_regex(r"[a-z0-9.-]{1,30}", fullmatch=True), st.integers(1, 65535), st.integers(1, 65535))
def test_an_address_is_read_back(host: str, port: int, grpc: int) -> None:
    upstream = parse_upstream(f"{host}:{port},grpc={grpc}")
    assert (upstream.host, upstream.port, upstream.grpc_port) == (host, port, grpc)
    assert parse_upstream(upstream.address).address == upstream.address


def test_a_resolved_name_keeps_the_rest() -> None:
    found = parse_upstream("workers:8000,grpc=8001,tier=edge").at("fd00::7")
    assert found == Upstream("fd00::7", 8000, 8001, tier="edge")
    assert found.address == "[fd00::7]:8000"


@given(st.text(max_size=60))
def test_nothing_else_is_raised(text: str) -> None:
    try:
        assert parse_upstream(text).host
    except ConfigError:
        pass
