"""Which texts are repositories, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.models.sources.locations import RepositoryUrl, is_url, parse_location


@pytest.mark.parametrize("text", ["models", "./models", "/srv/models", "~/models", "s3", "c:/models", "s3:"])
def test_a_text_without_a_scheme_is_a_path(text: str) -> None:
    assert not is_url(text)
    assert parse_location(text) == Path(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", RepositoryUrl("s3", "bucket", "")),
        ("s3://bucket/a/b/", RepositoryUrl("s3", "bucket", "a/b")),
        ("gs://my_bucket.example/a", RepositoryUrl("gs", "my_bucket.example", "a")),
        ("az://container/a", RepositoryUrl("az", "container", "a")),
        ("https://host:8443/a/b", RepositoryUrl("https", "host:8443", "a/b")),
        ("HTTPS://host", RepositoryUrl("https", "host", "")),
        ("http://127.0.0.1:80/a", RepositoryUrl("http", "127.0.0.1:80", "a")),
        ("http://[::1]:80/a", RepositoryUrl("http", "[::1]:80", "a")),
        ("http://localhost/a", RepositoryUrl("http", "localhost", "a")),
    ],
)
def test_urls_are_taken_apart_and_put_together(text: str, expected: RepositoryUrl) -> None:
    assert parse_location(text) == expected
    assert parse_location(str(expected)) == expected


def test_a_url_has_a_parent() -> None:
    url = parse_location("s3://bucket/a/detector")
    assert isinstance(url, RepositoryUrl)
    assert str(url.parent) == "s3://bucket/a"
    assert str(url.parent.parent) == "s3://bucket"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ftp://host/a", "s3://bucket/prefix"),
        ("http://host/a", "plain HTTP is for this machine alone"),
        ("s3://", "s3://bucket/prefix"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://buck et/prefix", "s3://bucket/prefix"),
        ("s3://bucket/a//b", "empty parts"),
        ("s3://bucket/../b", "'..'"),
        ("https://host/a?X-Amz-Signature=abc", "without '?'"),
        ("https://host/a b", "spaces"),
        ("s3:/bucket/models", "'s3://bucket/models'"),
        ("https:/host/models", "'https://host/models'"),
    ],
)
def test_other_urls_are_rejected_with_an_example(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_location(text)
    assert named in str(raised.value)


def test_credentials_in_a_url_are_rejected_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_location("https://user:pass123@host/models")
    assert "pass123" not in str(raised.value)
    assert "user" not in str(raised.value)
    assert "host" in str(raised.value)


def test_a_signature_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_location("https://host/models?sig=abc123")
    assert "abc123" not in str(raised.value)
