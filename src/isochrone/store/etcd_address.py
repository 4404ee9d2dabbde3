"""Reads ``etcd:http://h1:2379,http://h2:2379``, with user, password and certificates where they are needed.

etcd:https://user:password@h1:2379,https://h2:2379?ca=/etc/etcd/ca.pem&cert=client.pem&key=client.key
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from isochrone.errors import ConfigError

EXPECTED = "etcd:http://HOST:2379, several endpoints parted by commas, options ca, cert and key after a ?"
_OPTIONS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    #: Like http://h1:2379, without user and password.
    endpoints: tuple[str, ...]
    user: str = ""
    password: str = ""
    #: Files: the authority that signed the servers' certificates; ours, and its key.
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def shown(self) -> str:
        """For messages and logs: no password."""
        return "etcd:" + ",".join(self.endpoints)


def read_address(url: str) -> EtcdAddress:
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
    return EtcdAddress(tuple(endpoints), user, password, **options)


def _bad(part: str) -> ConfigError:
    # Behind an @: what stands before it may hold a password.
    return ConfigError("store", "url", EXPECTED, repr(part.rpartition("@")[2]))
