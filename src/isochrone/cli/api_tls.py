"""TLS of the commands that call the control API and the metrics pages of a fleet.

ISOCHRONE_API_CA, ISOCHRONE_API_CERT and ISOCHRONE_API_KEY name PEM files; without them, the files of the fleet that was
started last on this machine are used.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from isochrone.cli.last_fleet import last_fleet
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.contexts import client_context

CA, CERT, KEY = "ISOCHRONE_API_CA", "ISOCHRONE_API_CERT", "ISOCHRONE_API_KEY"


@dataclass(frozen=True, slots=True)
class ApiTls:
    """``ca`` "": the system's authorities. ``server_name`` "": certificates have the addresses."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        """Raises ``InvalidArgument`` for files that cannot be read."""
        certificate, key = (Path(each) if each else None for each in (self.cert, self.key))
        try:
            return client_context(Path(self.ca) if self.ca else None, certificate=certificate, key=key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"{CA}: expected PEM authorities, given {self.ca} ({error})") from None
        except ConfigError as error:
            raise InvalidArgument(str(error)) from None

    def client(self) -> ClientTls:
        """For calls to several processes."""
        if not self.ca:
            raise InvalidArgument(f"{CA}: expected the file of the fleet's authorities, given nothing")
        certificate, key = (Path(each) if each else None for each in (self.cert, self.key))
        return ClientTls(Path(self.ca), certificate, key, self.server_name)

    def transport(self) -> httpx.BaseTransport:
        """Of a blocking client; plain addresses are called plainly."""
        return _Transport(self)


def api_tls(url: str = "") -> ApiTls:
    """The environment's files, else those of the last fleet that this user can read. ``url``: what is called; on
    another host than that fleet's API it has nothing to do with it. "": a process of that fleet."""
    ca, cert, key = (os.environ.get(name, "") for name in (CA, CERT, KEY))
    if bool(cert) != bool(key):
        raise InvalidArgument(f"{CERT} and {KEY} go together")
    last = last_fleet()
    is_other = last is not None and bool(url) and urlsplit(url).hostname != urlsplit(last.api).hostname
    if ca or last is None or is_other or not last.ca or not os.access(last.ca, os.R_OK):
        return ApiTls(ca, cert, key)
    if cert or not os.access(last.key, os.R_OK):
        return ApiTls(last.ca, cert, key, last.server_name)
    return ApiTls(last.ca, last.cert, last.key, last.server_name)


class _Transport(httpx.BaseTransport):
    """Reads certificates at the first call that needs them: most fleets of one machine are plain."""

    def __init__(self, tls: ApiTls) -> None:
        self._tls = tls
        self._plain: httpx.HTTPTransport | None = None
        self._encrypted: httpx.HTTPTransport | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme != "https":
            if self._plain is None:
                self._plain = httpx.HTTPTransport(verify=False, trust_env=False)
            return self._plain.handle_request(request)
        if self._encrypted is None:
            self._encrypted = httpx.HTTPTransport(verify=self._tls.context(), trust_env=False)
        if self._tls.server_name:
            request.extensions["sni_hostname"] = self._tls.server_name
        return self._encrypted.handle_request(request)

    def close(self) -> None:
        for each in (self._plain, self._encrypted):
            if each is not None:
                each.close()
