"""The address of a server, and the certificates for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from isochrone.errors import ConfigError
from isochrone.wire.tls.contexts import client_context

_EXPECTED = "HOST:PORT, http://HOST:PORT, https://…, grpc://… or grpcs://…"
_DEFAULT_PORTS = {"http": 8000, "https": 8000, "grpc": 8001, "grpcs": 8001}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how to talk to it."""

    scheme: str
    host: str
    port: int

    @property
    def is_grpc(self) -> bool:
        return self.scheme.startswith("grpc")

    @property
    def is_secure(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_address(url: str) -> Address:
    """Raises ``ConfigError``. Without a scheme it is HTTP; without a port Triton's."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in _DEFAULT_PORTS or parts.path not in ("", "/") or parts.query or parts.username:
        raise ConfigError("isochrone.Client", "url", _EXPECTED, repr(url))
    return Address(parts.scheme, host, _DEFAULT_PORTS[parts.scheme] if port is None else port)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files for servers behind TLS."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def check(self, address: Address) -> None:
        given = {name: path for name in ("ca", "cert", "key") if (path := getattr(self, name)) is not None}
        for name, path in given.items():
            if not address.is_secure:
                raise ConfigError(
                    "isochrone.Client", "url", f"https:// or grpcs://, since {name} is given", str(address)
                )
            if not path.is_file():
                raise ConfigError("isochrone.Client", name, "a PEM file", f"'{path}', which is not there")
        if (self.cert is None) != (self.key is None):
            raise ConfigError("isochrone.Client", "cert, key", "both or none", ", ".join(given))

    def context(self, *, http2: bool = False) -> ssl.SSLContext:
        try:
            context = client_context(self.ca, http2=http2)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("isochrone.Client", "ca, cert, key", "PEM files", str(error)) from None
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """CA, key and certificate, as gRPC's library takes them."""
        self.context()  # raises for wrong files; the library would only log them
        ca, key, cert = (None if path is None else path.read_bytes() for path in (self.ca, self.key, self.cert))
        return ca, key, cert
