"""Addresses of object stores in the environment, and panics of the library that reads them."""

from __future__ import annotations

import asyncio

import pytest

from isochrone.errors import ConfigError
from isochrone.models.sources.endpoints import check_endpoint, is_endpoint
from isochrone.models.sources.failures import LibraryPanic, panics_as_errors
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.models.sources.objects import RemoteFiles

_URL = RepositoryUrl("s3", "bucket", "models")


@pytest.mark.parametrize(
    "text",
    [
        "http://minio.storage.svc:9000",
        "https://s3.example.com",
        "https://s3.example.com/",
        "HTTP://minio_1:9000/path/with%20escapes",
        "http://127.0.0.1:1",
        "http://[::1]:65535/",
    ],
)
def test_addresses_of_servers(text: str) -> None:
    assert is_endpoint(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "minio:9000",
        "http://",
        "http:///models",
        "http://minio:99999",
        "http://minio:port",
        "http://minio:0",
        "http://minio:",
        "http://min io:9000",
        "http://minio:9000\n",
        "ftp://minio",
        "http://[::1",
        "http://[1.2.3.4]",
        "http://999.1.1.1:9000",
        "http://user:password@minio:9000",
        "http://minio:9000/?x",
        "http://grün.example.com",
    ],
)
def test_what_is_none_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert not is_endpoint(text)
    monkeypatch.setenv("AWS_ENDPOINT_URL", text)
    with pytest.raises(ConfigError, match=r"^environment: AWS_ENDPOINT_URL: expected a URL such as http://") as failure:
        RemoteFiles(_URL).read("x")
    assert "password" not in str(failure.value)


def test_only_the_variables_of_its_own_store_matter() -> None:
    environment = {"AWS_ENDPOINT_URL": "x", "AZURE_STORAGE_ENDPOINT": "y", "GOOGLE_BASE_URL": "https://g.example.com"}
    check_endpoint(RepositoryUrl("gs", "bucket", ""), environment)
    check_endpoint(RepositoryUrl("https", "example.com", "models"), environment)
    check_endpoint(_URL, {})
    for url, name in ((_URL, "AWS_ENDPOINT_URL"), (RepositoryUrl("az", "container", ""), "AZURE_STORAGE_ENDPOINT")):
        with pytest.raises(ConfigError, match=name):
            check_endpoint(url, environment)


def test_a_panic_of_the_library_is_an_error_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that our check does not look into, and that the library does not survive."""
    for name, value in (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y"), ("AWS_ALLOW_HTTP", "true")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://xn--")
    files = RemoteFiles(_URL)
    with pytest.raises(ConfigError, match=r"s3://bucket/models: .*obstore panicked: .*; check the bucket"):
        files.read("x")
    with pytest.raises(ConfigError, match="obstore panicked"):
        files.list()


class PanicException(BaseException):
    """As pyo3 makes it."""


def test_only_panics_become_errors() -> None:
    with pytest.raises(LibraryPanic, match="obstore panicked: no"), panics_as_errors():
        raise PanicException("no")
    for kind in (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, OSError):
        with pytest.raises(kind), panics_as_errors():
            raise kind
    with panics_as_errors():
        pass
