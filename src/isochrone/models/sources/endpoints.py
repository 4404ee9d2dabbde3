"""Addresses of object stores in the environment, checked before obstore reads them: at one that it cannot parse, it
panics, and not before the first request. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from isochrone.errors import ConfigError
from isochrone.models.sources.locations import RepositoryUrl

EXPECTED = "a URL such as http://minio.example.com:9000"
#: By scheme: the variables by which obstore chooses a server.
_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ENDPOINT = re.compile(
    r"(?i:https?)://(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/[A-Za-z0-9._~%!$&'()*+,;=:@/-]*)?",
    re.ASCII,
)
_LAST_PORT = 65535
#: A host whose last part is a number is an address, and no name.
_NUMERIC = re.compile(r"(?:^|\.)(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?$")


def is_endpoint(text: str) -> bool:
    """Whether it is the address of a server: http or https, a host, perhaps a port and a path."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 443) <= _LAST_PORT:
        return False
    host = match["host"]
    try:
        if host is None:
            ipaddress.IPv6Address(match["ipv6"])
        elif _NUMERIC.search(host):
            ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def check_endpoint(url: RepositoryUrl, environment: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` if the environment names an invalid address for the store of a repository."""
    for name in _VARIABLES.get(url.scheme, ()):
        given = environment.get(name)
        if given is not None and not is_endpoint(given):
            # It may contain a password: then only its form is shown.
            shown = "one with a user" if "@" in given else repr(given[:200]) if given else "'' (unset it)"
            raise ConfigError("environment", name, EXPECTED, shown)
