"""Flags that ``isochrone gateway`` and ``isochrone pick`` share: where to listen, workers and rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isochrone.errors import FlagError
from isochrone.gateway.monitoring.discovery import read_upstreams
from isochrone.gateway.policies import NAMES
from isochrone.gateway.rules.file import load_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.server.failures import StartFailed
from isochrone.gateway.upstream.addresses import parse_upstream

UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="A worker: HOST:PORT[,grpc=PORT][,metrics=PORT][,tier=NAME][,device=NAME][,api=openai]; repeatable.",
    ),
]
DnsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:PORT", help="A name, resolved again every second: one upstream per address."),
]
FileOption = Annotated[list[Path] | None, typer.Option(help="File with one upstream per line, followed as it changes.")]
PolicyOption = Annotated[
    str | None,
    typer.Option(help=f"How a worker is chosen: {', '.join(NAMES)}.", show_default="prequal, or by the rules"),
]
RulesOption = Annotated[Path | None, typer.Option(help="YAML file with rules per model; see docs/gateway.md.")]
ProbeIntervalOption = Annotated[float, typer.Option(help="Seconds between checks of a silent worker.", min=0.01)]
ProbeTimeoutOption = Annotated[float, typer.Option(help="Seconds a check may take.", min=0.01)]
StoreOption = Annotated[
    str,
    typer.Option(help="Join the fleet in this store: sqlite:PATH or etcd:http://HOST:2379.", show_default="off"),
]
FleetOption = Annotated[str, typer.Option(help="With --store: the fleet's name.")]
AdvertiseOption = Annotated[
    str, typer.Option(help="With --store: the address others reach it at.", show_default="the listening one")
]
LeaseOption = Annotated[
    float, typer.Option(help="With --store: seconds without a heartbeat until it counts as lost.", min=0.5)
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of random choices.")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A limit of the wire, as in max_body_bytes=1048576. May be repeated."),
]
LogJsonOption = Annotated[bool, typer.Option("--log-json/--no-log-json", help="Log lines as JSON.")]


def read_listen(text: str) -> tuple[str, int]:
    """Host and port of ``--listen``."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise FlagError("--listen", "HOST:PORT", repr(text))
    return (host or "0.0.0.0").removeprefix("[").removesuffix("]"), int(port)


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
