"""An upstream as the command line and files name it: ``host:port``, and what is known of it beforehand.

``10.0.0.7:8000`` is one of our workers, whose every port speaks HTTP/1.1 and gRPC. Real Triton has a port for each:
``10.0.0.7:8000,grpc=8001,metrics=8002``. Placement goes the same way: ``,tier=edge,device=gpu,region=eu``. A server
that speaks OpenAI's API alone, such as vLLM, is ``10.0.0.7:8000,api=openai``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from isochrone.errors import ConfigError

OPENAI = "openai"
#: What the records of a fleet say of a worker's ports, and of a server that the fleet did not start.
TLS, EITHER, PLAIN, OUTSIDE = "tls", "either", "plain", "outside"

_EXPECTED = "host:port[,grpc=PORT][,metrics=PORT][,tier=NAME][,device=NAME][,region=NAME][,api=openai]"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One server to forward to."""

    host: str
    port: int
    grpc_port: int
    #: 0: none is known.
    metrics_port: int = 0
    tier: str = ""
    device: str = ""
    region: str = ""
    #: "openai": it speaks OpenAI's API alone; "": the Open Inference Protocol.
    api: str = ""
    #: TLS, EITHER, PLAIN or OUTSIDE; "": TLS where the gateway has authorities for its workers.
    tls: str = ""
    #: The name that ``host`` is an address of: its certificate has the name.
    resolved_from: str = field(default="", compare=False)
    #: A worker that registered itself in the gateway's fleet.
    is_of_fleet: bool = False

    @property
    def name(self) -> str:
        """The name in its certificate."""
        return self.resolved_from or self.host

    @property
    def address(self) -> str:
        """Names it everywhere."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def at(self, host: str) -> Upstream:
        """The same at another address: a name has been resolved."""
        return replace(self, host=host, resolved_from=self.name)


def parse_upstream(text: str, where: str = "--upstream") -> Upstream:
    """Raises ``ConfigError`` that says what is wrong with which part."""
    address, *options = [part.strip() for part in text.strip().removeprefix("http://").split(",")]
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host:
        raise ConfigError(where, "address", _EXPECTED, repr(text))
    number = _port(port, where, "port")
    known: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in ("grpc", "metrics", "tier", "device", "region", "api"):
            raise ConfigError(where, name or "option", _EXPECTED, repr(option))
        known[name] = value
    if known.get("api", OPENAI) != OPENAI:
        raise ConfigError(where, "api", OPENAI, repr(known["api"]))
    return Upstream(
        host,
        number,
        _port(known["grpc"], where, "grpc") if "grpc" in known else number,
        _port(known["metrics"], where, "metrics") if "metrics" in known else 0,
        known.get("tier", ""),
        known.get("device", ""),
        known.get("region", ""),
        known.get("api", ""),
    )


def _port(text: str, where: str, key: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigError(where, key, "a port from 1 to 65535", repr(text))
    return int(text)
