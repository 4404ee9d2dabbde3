"""Flags that ``isochrone gateway`` and ``isochrone pick`` share: where to listen, workers and rules."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from isochrone.errors import FlagError
from isochrone.gateway.monitoring.discovery import read_upstreams
from isochrone.gateway.policies import NAMES
from isochrone.gateway.rules.file import load_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.server import StartFailed
from isochrone.gateway.upstream.addresses import parse_upstream
from isochrone.wire.tls import server_context


def read_listen(text: str) -> tuple[str, int]:
    """Host and port of ``--listen``."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise FlagError("--listen", "HOST:PORT", repr(text))
    return (host or "0.0.0.0").removeprefix("[").removesuffix("]"), int(port)


def read_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The context of ``--tls-cert`` and ``--tls-key``; None: without TLS."""
    if bool(certificate) != bool(key):
        raise StartFailed("--tls-cert and --tls-key go together")
    return server_context(certificate, key, None) if certificate and key else None


class Sources:
    """Where workers and rules come from: flags, or the store of a fleet."""

    def __init__(
        self, command: str, upstream: Sequence[str], dns: Sequence[str], files: Sequence[Path], store: str
    ) -> None:
        """``command``: the one that the flags belong to, for its error."""
        self._is_led = bool(store)
        self._names_workers = bool(upstream or dns or files)
        if not (self._names_workers or store):
            raise StartFailed(f"no upstream; name one: isochrone {command} --upstream host:port")
        for path in files:
            if path.exists():
                read_upstreams(path)
        self.upstreams = tuple(parse_upstream(text) for text in upstream)
        self.dns = tuple(parse_upstream(text, "--upstream-dns") for text in dns)
        self.files = tuple(files)

    def rules(self, path: Path | None, policy: str | None) -> GatewayRules:
        """The rules of ``--rules`` and ``--policy``."""
        if self._is_led and (self._names_workers or path or policy):
            raise StartFailed("--store brings upstreams and rules; --upstream, --rules and --policy do not go with it")
        if policy is not None and policy not in NAMES:
            raise FlagError("--policy", f"one of {', '.join(NAMES)}", repr(policy))
        rules = load_rules(path) if path is not None else GatewayRules()
        return rules if policy is None else rules.with_policy(policy)
