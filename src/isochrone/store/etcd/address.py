"""Reads ``etcd:http://h1:2379,http://h2:2379``, with user, password and certificates where they are needed.

etcd:https://user@h1:2379,https://h2:2379?ca=/etc/etcd/ca.pem&cert=client.pem&key=client.key

The password comes from the environment, which no list of processes shows. A password in the URL (user:password@h1) is
accepted, since a file may hold it; it is removed before the URL reaches a command line, a record or a message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from isochrone.errors import ConfigError

EXPECTED = "etcd:http://HOST:2379, several endpoints separated by commas, options ca, cert and key after a ?"
_OPTIONS = ("ca", "cert", "key")
#: The variable with the password, for a URL that names only a user.
PASSWORD_VARIABLE = "ISOCHRONE_STORE_PASSWORD"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    #: Like http://h1:2379, without user and password.
    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    #: Files: the authority of the servers' certificates; our certificate and its key.
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def shown(self) -> str:
        """For messages and logs: no password."""
        return "etcd:" + ",".join(self.endpoints)


def read_address(url: str) -> EtcdAddress:
    if not url.isprintable():
        # urlsplit leaves out ends of lines, so that others who look for the password would not see it.
        raise ConfigError("store", "url", "printable characters", "a control character")
    hosts, _, query = url.removeprefix("etcd:").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError("store", "url", f"the options {', '.join(_OPTIONS)} after the ?", name)
    endpoints = []
    user = password = ""
    for part in hosts.split(","):
        try:
            split = urlsplit(part.strip())
            port = split.port
        except ValueError:
            raise _bad(part) from None
        if split.scheme not in ("http", "https") or not split.hostname or split.path not in ("", "/"):
            raise _bad(part)
        if split.username:
            user, password = unquote(split.username), unquote(split.password or "")
        host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
        endpoints.append(f"{split.scheme}://{host}:{port or 2379}")
    if user and not password:
        password = os.environ.get(PASSWORD_VARIABLE, "")
    return EtcdAddress(tuple(endpoints), user, password, **options)


def split_password(url: str) -> tuple[str, str]:
    """A store's URL without its password, and the password; "": it has none."""
    if url.startswith("sqlite:"):
        return url, ""
    hosts, mark, query = url.partition("?")
    password = ""
    parts = []
    for part in hosts.split(","):
        before, slashes, rest = part.partition("://")
        whose, at, host = rest.rpartition("@")
        user, _, found = whose.partition(":")
        password = unquote(found) or password
        parts.append(f"{before}{slashes}{user}{at}{host}")
    return ",".join(parts) + mark + query, password


def _bad(part: str) -> ConfigError:
    # Only the part after an @: the part before it may hold a password.
    return ConfigError("store", "url", EXPECTED, repr(part.rpartition("@")[2]))
