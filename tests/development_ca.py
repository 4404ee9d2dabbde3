"""A development authority for tests: certificates by name, valid ones and those that must be refused."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from isochrone.secure.certificates.authority import Authority
from isochrone.secure.certificates.minting import Leaf
from isochrone.secure.certificates.subject_names import read_names

DAY = timedelta(days=1)


class DevelopmentCa:
    """An authority in a directory, and the flags that name its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca.crt"
        self.authority = Authority.create(directory, 10 * DAY, datetime.now(UTC))

    def issue(
        self, name: str, *hosts: str, uri: str = "", client: bool = False, expired: bool = False
    ) -> DevelopmentCa:
        leaf = Leaf(name, read_names(hosts, [uri] if uri else []), bool(hosts), client, DAY)
        self.authority.issue(leaf, datetime.now(UTC) - (2 * DAY if expired else timedelta()))
        return self

    def pair(self, name: str) -> tuple[str, str]:
        return str(self.directory / name / "tls.crt"), str(self.directory / name / "tls.key")

    def server_flags(self, name: str, *, mutual: bool = True) -> list[str]:
        certificate, key = self.pair(name)
        flags = ["--tls-cert", certificate, "--tls-key", key]
        return [*flags, "--tls-client-ca", str(self.ca)] if mutual else flags

    def upstream_flags(self, name: str = "") -> list[str]:
        flags = ["--upstream-ca", str(self.ca)]
        if name:
            certificate, key = self.pair(name)
            flags += ["--upstream-cert", certificate, "--upstream-key", key]
        return flags

    def context(self, name: str = "") -> ssl.SSLContext:
        """A client's, by the files as they are now. Between a key and its certificate, it reads them again."""
        while True:
            context = ssl.create_default_context(cafile=str(self.ca))
            try:
                if name:
                    context.load_cert_chain(*self.pair(name))
            except ssl.SSLError:
                continue
            return context
