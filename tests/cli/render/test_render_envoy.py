"""``isochrone render envoy``, and the page that shows what it prints."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from documented import blocks
from isochrone.cli.main import app


def _rendered(*words: str) -> Any:
    result = CliRunner().invoke(app, ["render", "envoy", *words])
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.output)


def _filters(document: Any) -> list[Any]:
    (listener,) = document["static_resources"]["listeners"]
    return list(listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"])


def test_the_page_shows_what_is_printed() -> None:
    (shown,) = [text for page, text in blocks("yaml") if page.name == "picker.md"]
    assert yaml.safe_load(shown) == _rendered("--body-mode", "NONE", "--listen", "127.0.0.1:8080")


def test_json_is_the_same() -> None:
    result = CliRunner().invoke(app, ["render", "envoy", "--json"])
    assert json.loads(result.output) == _rendered()


def test_a_clients_destination_is_removed_before_the_picker_is_asked() -> None:
    names = [each["name"] for each in _filters(_rendered())]
    assert names == [f"envoy.filters.http.{name}" for name in ("header_mutation", "ext_proc", "router")]
    assert "x-gateway-destination-endpoint" in str(_filters(_rendered())[0])


def test_only_a_fallback_lets_requests_pass_without_the_picker() -> None:
    closed, opened = _rendered(), _rendered("--fallback", "10.0.0.1:8000", "--fallback", "[::1]:8000")
    assert _filters(closed)[1]["typed_config"]["failure_mode_allow"] is False
    assert _filters(opened)[1]["typed_config"]["failure_mode_allow"] is True
    (fallback,) = [each for each in opened["static_resources"]["clusters"] if each["name"] == "fallback"]
    members = fallback["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert [each["endpoint"]["address"]["socket_address"]["address"] for each in members] == ["10.0.0.1", "::1"]


@pytest.mark.parametrize(
    ("mode", "trailers"),
    [("NONE", "SKIP"), ("STREAMED", "SKIP"), ("BUFFERED", "SEND"), ("FULL_DUPLEX_STREAMED", "SEND")],
)
def test_trailers_are_sent_where_the_body_decides(mode: str, trailers: str) -> None:
    configuration = _filters(_rendered("--body-mode", mode))[1]["typed_config"]
    assert configuration["processing_mode"]["request_trailer_mode"] == trailers


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--body-mode", "SOME"), "--body-mode: expected one of NONE"),
        (("--picker", "9002"), "--picker: expected HOST:PORT, given '9002'"),
        (("--listen", "x:99999"), "--listen: expected HOST:PORT"),
        (("--fallback", "x"), "--fallback: expected HOST:PORT"),
    ],
)
def test_mistakes_name_the_flag(words: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, ["render", "envoy", *words])
    assert result.exit_code == 1
    assert named in result.output
    assert len(result.output.splitlines()) == 1
